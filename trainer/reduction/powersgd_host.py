"""PowerSGD: low-rank gradients with error feedback (Vogels, Karimireddy, Jaggi 2019, arXiv:1905.13727).

Each large gradient is a matrix M `[rows, columns]`, to which the error of earlier steps is added.
P = M Q is summed over the workers and made orthonormal, Q = Mᵀ P is summed, and the update is P Qᵀ.
What a worker did not send, M - P (Mᵀ P)ᵀ with its own Mᵀ P, is its error for the next step, which
starts from Q. (rows + columns) · rank numbers are sent instead of rows · columns.

The sum of the workers' errors is what the summed gradient lacks: nothing is lost, only sent later.

That delay is the weakness: training lags behind. So gradients are also projected on the strongest P of earlier steps (`recycle`).
Every worker has those, so only their part of Q is sent, a few kilobytes. After each step, P and Q are turned to the principal
directions of the update. The strongest stay; the next step's new P start from the others. (This is our addition; with `recycle` 0
it is the paper's method.)

Small tensors are sent uncompressed: along with P in TensorFlow ops; along with Q on the host, where P is sent during the backward pass.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.config.schema import Reduction
from trainer.network.bfloat16 import narrow
from trainer.network.host_array import HostArray, RowPool
from trainer.reduction.low_rank import FactorSizes
from trainer.reduction.method import NEGLIGIBLE, LowRank, Method, Setting, Shapes, plain

BLOCK_ELEMENTS = 2**17
"""Elements per block of a product that is built block by block to stay in the CPU's caches."""


def make_method(config: Reduction, shapes: Sequence[tuple[int, ...]], setting: Setting) -> Method:
    """Compress those gradients that are large enough: on the host with compiled loops, elsewhere with TensorFlow ops."""
    large = {number: one for number, shape in enumerate(shapes) if (one := FactorSizes.of(shape, config)) is not None}
    if not large:
        return plain()
    if setting.on_host:
        return HostPowerSGD(large, config, setting).method()
    from trainer.reduction.powersgd_tf import OpsPowerSGD

    return OpsPowerSGD(large, list(shapes), setting).method()


class _Matrix:
    """State between steps for one large gradient; factors are transposed."""

    def __init__(self, sizes: FactorSizes, first: np.ndarray):
        self.recycled = sizes.recycled
        self.error = HostArray((sizes.rows, sizes.columns))
        """Rest of the gradient to send, still including the product of the two factors below."""
        self.left, self.right = HostArray((sizes.factors, sizes.rows)), HostArray((sizes.factors, sizes.columns))
        """P of the last step, and this worker's own Q."""
        self.start = HostArray(first.shape)
        """Q summed over all workers: the next step starts from it."""
        self.start.assign(first)
        self._first = first
        self.projected = np.zeros((sizes.rank, sizes.rows), np.float32)

    def begin_at(self, right: np.ndarray) -> None:
        """Start the next step from the last rows of the summed Q `[factors, columns]`, scaled to length 1; an empty row from random."""
        length = np.sqrt(np.square(right, dtype=np.float64).sum(axis=1, keepdims=True))
        some = (length > NEGLIGIBLE * np.linalg.norm(length))[self.recycled :]
        self.start.array[...] = np.where(some, right[self.recycled :] / np.where(some, length[self.recycled :], 1), self._first)


class HostPowerSGD:
    """PowerSGD in compiled loops over arrays in host memory."""

    def __init__(self, large: dict[int, FactorSizes], config: Reduction, setting: Setting):
        self._large = list(large)
        # Sending P in 16 bits costs almost no accuracy: all workers project on the same basis, made from the rounded sum, and
        # whatever a worker's gradient has outside that basis stays in its error.
        self._as_sent = narrow if config.dtype == "bfloat16" else np.copy
        self._matrices = [_Matrix(sizes, sizes.start(number, setting.seed)) for number, sizes in large.items()]
        self._crew = RowPool(setting.threads)

    def method(self) -> Method:
        """The three computations between and around the two sums."""
        memory = [array for matrix in self._matrices for array in (matrix.error, matrix.left, matrix.right, matrix.start)]
        factors = [Shapes(matrix.projected.shape, matrix.left.shape, matrix.right.shape) for matrix in self._matrices]
        return Method([self.project, self.reproject, self.remember], memory, dict(zip(self._large, factors, strict=True)))

    def project(self, gradients: "list[np.ndarray | LowRank]") -> tuple[list[np.ndarray], list[np.ndarray]]:
        """From the large gradients alone, which are available before the rest: sends every P."""
        for matrix, gradient in zip(self._matrices, gradients, strict=True):
            error, parts = matrix.error.array, self._crew.parts(*matrix.error.shape)
            memory = matrix.left.array, matrix.right.array, matrix.start.array, matrix.projected
            if isinstance(gradient, LowRank):
                self._crew.run(project_product, parts, error, gradient, *memory)
            else:
                self._crew.run(_kernels().project, parts, error, gradient.reshape(error.shape), 0, *memory)
        return [], [self._as_sent(matrix.projected) for matrix in self._matrices]

    def reproject(self, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """From `[sums, *small gradients, *P]`: sends the first two and every Q; the orthonormal P stay."""
        count = len(self._large)
        for matrix, left in zip(self._matrices, arrays[-count:], strict=True):
            # The new left factors, made orthonormal, follow the reused ones.
            matrix.left.array[matrix.recycled :] = left
            _kernels().orthonormalise(matrix.left.array, matrix.recycled)
            parts = self._crew.parts(*matrix.error.shape)
            sums = [np.zeros(matrix.right.shape, np.float32) for _ in parts]
            self._crew.run(_kernels().reproject, parts, matrix.error.array, matrix.left.array, each=[(part,) for part in sums])
            matrix.right.assign(np.add.reduce(sums))
        return [matrix.left.array for matrix in self._matrices], [*arrays[:-count], *(matrix.right.array for matrix in self._matrices)]

    def remember(self, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns `[*left factors, sums, *small gradients, *right factors]` and prepares the next step."""
        for matrix, right in zip(self._matrices, arrays[-len(self._large) :], strict=True):
            if matrix.recycled:
                by = _kernels().principal(right)
                for factors in (matrix.left.array, matrix.right.array, right):
                    _kernels().turn(by, factors)
            matrix.begin_at(right)
        return arrays, []


def project_product(first: int, last: int, error: np.ndarray, gradient: LowRank, *memory: np.ndarray) -> None:
    """`kernels.project` for a gradient given as factors: a few rows at a time, used while they are in the caches."""
    columns = error.shape[1]
    block = np.empty((max(1, min(BLOCK_ELEMENTS // columns, last - first)), columns), np.float32)
    for begin in range(first, last, len(block)):
        end = min(begin + len(block), last)
        rows = block[: end - begin]
        product(gradient, begin, end, rows)
        _kernels().project(begin, end, error, rows, begin, *memory)


def product(gradient: LowRank, begin: int, end: int, out: np.ndarray) -> None:
    """Write rows `begin` to `end` of a gradient given as factors to `out`."""
    np.matmul(gradient.left[:, begin:end].T, gradient.right, out=out)


def _kernels() -> Any:
    """The compiled loops; importing numba is deferred to their first use."""
    from trainer.reduction import kernels as compiled

    return compiled
