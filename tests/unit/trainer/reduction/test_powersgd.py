"""PowerSGD against the paper's Algorithms 1 and 2 in float64, over several workers and steps."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.unit import forked
from trainer.config.schema import Reduction
from trainer.network.bfloat16 import widen
from trainer.network.host_array import RowPool
from trainer.reduction import kernels, powersgd_host
from trainer.reduction.low_rank import FactorSizes
from trainer.reduction.method import LowRank, Setting, plain

ROOT = Path(__file__).resolve().parents[4]
SHAPES = [(3, 3, 6, 20), (20,), (300, 40), (40,), (), (40, 10)]
"""A convolution as a matrix 54 x 20, one of 300 x 40, and small ones."""
LARGE = {0: (54, 20), 2: (300, 40)}


class Reference:
    """The method in float64, as written in the paper, with the error of the sum of all workers' gradients; and with recycled factors."""

    def __init__(self, rank, seed, recycle=0):
        self.errors, self.starts = {}, {}
        self.kept = {number: np.zeros((rows, min(recycle, columns - rank))) for number, (rows, columns) in LARGE.items()}
        sizes = {number: FactorSizes(*matrix, rank, rank) for number, matrix in LARGE.items()}
        self.firsts = {number: one.start(number, seed).T.astype(np.float64) for number, one in sizes.items()}

    def reduce(self, workers):
        """Gradients of all workers, summed."""
        result = []
        for number in range(len(SHAPES)):
            gradients = [gradients[number].astype(np.float64) for gradients in workers]
            result.append(self.compress(number, gradients) if number in LARGE else sum(gradients))
        return result

    def compress(self, number, gradients):
        rows, columns = LARGE[number]
        errors = self.errors.get(number, [np.zeros((rows, columns))] * len(gradients))
        matrices = [gradient.reshape(rows, columns) + error for gradient, error in zip(gradients, errors, strict=True)]
        new = sum(matrix @ self.starts.get(number, self.firsts[number]) for matrix in matrices)
        kept = self.kept[number]
        left = np.concatenate([kept, np.linalg.qr(new - kept @ (kept.T @ new))[0]], axis=1)
        rights = [matrix.T @ left for matrix in matrices]
        self.errors[number] = [matrix - left @ right.T for matrix, right in zip(matrices, rights, strict=True)]
        right = sum(rights)
        count = kept.shape[1]
        if count:
            _, _, by = np.linalg.svd(right, full_matrices=False)
            self.kept[number] = (left @ by.T)[:, :count]
        begin = (right @ by.T)[:, count:] if count else right
        length = np.linalg.norm(begin, axis=0)
        some = length > 1e-9 * np.linalg.norm(right)
        self.starts[number] = np.where(some, begin / np.where(some, length, 1), self.firsts[number])
        return (left @ right.T).reshape(SHAPES[number])


def sums(values, workers):
    """What direct connections would give."""
    kinds = [array.dtype for array in values[0]]
    return (
        [np.sum([worker[index] for worker in values], axis=0, dtype=np.float32).astype(kind) for index, kind in enumerate(kinds)]
        if workers
        else []
    )


def reduce_on_host(methods, gradients):
    """All gradients, as matrices where they were compressed, from the computations of several workers."""
    hands = [[own[number] for number in LARGE] for own in gradients]
    for number in range(3):
        stayed, sent = zip(*(method.computations[number](hand) for method, hand in zip(methods, hands, strict=True)), strict=True)
        total = sums(sent, len(sent)) if sent[0] else []
        hands = [[*kept, *(widen(array).copy() for array in total)] for kept in stayed]
        if number == 0:
            others = [
                [np.array([1, 2, 3, 0], np.float32), *(own[place] for place in range(len(SHAPES)) if place not in LARGE)]
                for own in gradients
            ]
            hands = [[*other, *hand] for other, hand in zip(others, hands, strict=True)]
    for hand in hands[1:]:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(hand, hands[0], strict=True))
    *lefts, total = hands[0][:3]
    rights = hands[0][-2:]
    assert total.tolist() == [len(methods), 2 * len(methods), 3 * len(methods), 0]
    products = iter(left.T.astype(np.float64) @ right for left, right in zip(lefts, rights, strict=True))
    small = iter(hands[0][3:-2])
    return [next(products).reshape(shape) if number in LARGE else next(small) for number, shape in enumerate(SHAPES)]


def config(rank=2, min_elements=1000, dtype="float32", recycle=3, max_rank=1):
    return Reduction("powersgd", rank=rank, max_rank=max_rank, min_elements=min_elements, dtype=dtype, recycle=recycle)


def make(workers, rank=2, threads=1, **options):
    return [powersgd_host.make_method(config(rank, **options), SHAPES, Setting(workers, True, threads, seed=7)) for _ in range(workers)]


def gradients_of(step, workers, scale=1.0):
    """Gradients that change slowly, as a network's do, with some noise."""
    actual = []
    for worker in range(workers):
        random, steady = np.random.default_rng([step, worker]), np.random.default_rng(1)
        actual.append(
            [(scale * (steady.standard_normal(shape) + 0.3 * random.standard_normal(shape))).astype(np.float32) for shape in SHAPES]
        )
    return actual


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("rank", "recycle"), [(1, 0), (2, 0), (4, 0), (2, 3), (1, 6)])
def test_every_step_is_that_of_paper_in_float64(rank, recycle, threads, monkeypatch):
    monkeypatch.setattr("trainer.network.host_array.SPLIT_FROM", 100)
    methods, reference = make(3, rank, threads, recycle=recycle), Reference(rank, 7, recycle)
    for step in range(20):
        gradients = gradients_of(step, 3)
        for actual, expected in zip(reduce_on_host(methods, gradients), reference.reduce(gradients), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())


def test_after_gradients_of_zero_it_goes_on():
    methods = make(2)
    assert not any(np.any(actual) for actual in reduce_on_host(methods, gradients_of(0, 2, 0.0)))
    gradients = gradients_of(0, 2)
    whole = gradients[0][2] + gradients[1][2]
    assert np.linalg.norm(whole - reduce_on_host(methods, gradients)[2]) < 0.99 * np.linalg.norm(whole)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block", [2**17, 40 * 7])
def test_layer_factors_are_taken_as_their_product(threads, block, monkeypatch):
    """A gradient given as the factors of a layer is taken as their product."""
    monkeypatch.setattr("trainer.network.host_array.SPLIT_FROM", 100)
    monkeypatch.setattr(powersgd_host, "BLOCK_ELEMENTS", block)
    whole, factored = (make(2, threads=threads) for _ in range(2))
    for step in range(5):
        gradients, random = gradients_of(step, 2), np.random.default_rng(step)
        layers = [LowRank(*(random.standard_normal((images, size)).astype(np.float32) for size in LARGE[2])) for images in (17, step)]
        for own, layer in zip(gradients, layers, strict=True):
            own[2] = layer.left.T @ layer.right
        expected = reduce_on_host(whole, gradients)
        given = [[*own[:2], layer, *own[3:]] for own, layer in zip(gradients, layers, strict=True)]
        for actual, one in zip(reduce_on_host(factored, given), expected, strict=True):
            np.testing.assert_allclose(actual, one, atol=1e-4 * np.abs(one).max())
    for actual, one in zip(factored[1].memory, whole[1].memory, strict=True):
        np.testing.assert_allclose(actual.numpy(), one.numpy(), atol=2e-4 * np.abs(one.numpy()).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("workers", [2, 5])
def test_applied_and_left_are_all_gradients(workers, dtype):
    """Nothing is lost what was applied and what is left are all gradients."""
    methods, applied, given = make(workers, dtype=dtype), [0.0] * len(SHAPES), [0.0] * len(SHAPES)
    for step in range(30):
        gradients = gradients_of(step, workers)
        applied = [total + actual for total, actual in zip(applied, reduce_on_host(methods, gradients), strict=True)]
        given = [total + sum(own[number].astype(np.float64) for own in gradients) for number, total in enumerate(given)]
    for place, number in enumerate(LARGE):
        left = sum(_left(method, place) for method in methods).reshape(SHAPES[number])
        assert np.abs(left).max() > 1
        np.testing.assert_allclose(applied[number] + left, given[number], atol=1e-3 * np.abs(given[number]).max())


def test_left_factors_in_16_bits_leave_little():
    left = {}
    for dtype in ("float32", "bfloat16"):
        methods, norms = make(3, dtype=dtype), []
        for step in range(30):
            reduce_on_host(methods, gradients_of(step, 3))
            norms.append(np.linalg.norm(sum(_left(method, 1) for method in methods)))
        left[dtype] = np.mean(norms[10:])
    assert left["bfloat16"] == pytest.approx(left["float32"], rel=0.02)


def _left(method, place):
    """What a worker has not sent: its error, without the product that is still in it."""
    error, left, right, _ = (array.array.astype(np.float64) for array in method.memory[4 * place : 4 * place + 4])
    return error - left.T @ right


def test_restored_memory_goes_on_bit_for_bit():
    methods = make(2)
    for step in range(3):
        reduce_on_host(methods, gradients_of(step, 2))
    kept = [[array.numpy() for array in method.memory] for method in methods]
    after = [actual.copy() for actual in reduce_on_host(methods, gradients_of(3, 2))]
    others = make(2)
    for method, arrays in zip(others, kept, strict=True):
        for array, values in zip(method.memory, arrays, strict=True):
            array.assign(values)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(after, reduce_on_host(others, gradients_of(3, 2)), strict=True))


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        ((28800, 128), {}, (28800, 128)),
        ((3, 3, 128, 128), {}, (1152, 128)),
        ((3, 3, 64, 128), {}, None),
        ((128,), {}, None),
        ((), {}, None),
        ((100, 1000), {}, (100, 1000)),
        ((99, 1001), {}, None),
        ((100, 100), {"min_elements": 10_000}, (100, 100)),
        ((100, 100), {"min_elements": 10_001}, None),
        ((100_000, 5), {}, (100_000, 5)),
        ((100_000, 4), {}, None),
        ((100, 100), {"rank": 16, "min_elements": 1}, (100, 100)),
        ((40, 100), {"rank": 16, "min_elements": 1}, None),
    ],
)
def test_large_tensor_with_small_factors_is_compressed(shape, options, expected):
    """A tensor is compressed when it is large and its factors are half its size."""
    actual = FactorSizes.of(shape, Reduction("powersgd", **options))
    assert (actual and (actual.rows, actual.columns)) == expected


@pytest.mark.parametrize(
    ("matrix", "options", "rank"),
    [
        ((28800, 128), {}, 2),
        ((16384, 128), {}, 2),
        ((16383, 128), {}, 2),
        ((8192, 128), {}, 4),
        ((2304, 600), {}, 3),
        ((2048, 128), {}, 16),
        ((1152, 128), {}, 16),
        ((1152, 128), {"max_rank": 5}, 5),
        ((1152, 128), {"max_rank": 1}, 2),
        ((8192, 128), {"rank": 1}, 2),
        ((100_000, 5), {}, 2),
    ],
)
def test_small_matrices_send_more_factors(matrix, options, rank):
    made = Reduction("powersgd", **options)
    assert FactorSizes.of_matrix(*matrix, made) == FactorSizes(*matrix, rank, min(rank + made.recycle, *matrix))
    method = powersgd_host.make_method(dataclasses.replace(made, min_elements=1), [matrix], Setting(2))
    assert not method.low_rank or method.low_rank[0].sent == (rank, matrix[0])


def test_with_small_tensors_alone_nothing_is_compressed():
    method = powersgd_host.make_method(config(), [(20,), (40, 10)], Setting(2))
    assert method == plain()


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_nearly_dependent_factors_become_orthonormal(rank):
    random = np.random.default_rng(0)
    base = random.standard_normal(5000)
    left = np.array([base + 1e-4 * random.standard_normal(5000) for _ in range(rank)], np.float32)
    span = left.astype(np.float64)
    kernels.orthonormalise(left, 0)
    np.testing.assert_allclose(left.astype(np.float64) @ left.T, np.eye(rank), atol=2e-6)
    np.testing.assert_allclose(span @ left.T @ left, span, atol=1e-4)


def test_factor_in_span_of_others_becomes_zero():
    row = np.arange(1, 10, dtype=np.float32)
    left = np.array([row, 2 * row, np.zeros(9), row[::-1]], np.float32)
    kernels.orthonormalise(left, 0)
    assert not left[1].any()
    assert not left[2].any()
    np.testing.assert_allclose(np.linalg.norm(left[[0, 3]], axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("empty", [0, 3])
def test_principal_directions_are_those_of_the_singular_values(empty):
    right = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32) * np.float32(10.0) ** -np.arange(8)[:, None]
    right[:empty] = 0
    by = kernels.principal(right)
    np.testing.assert_allclose(by @ by.T, np.eye(8), atol=1e-12)
    turned = right.copy()
    kernels.turn(by, turned)
    np.testing.assert_allclose(turned, (by @ right).astype(np.float32), atol=1e-6)
    lengths = np.linalg.norm(by @ right, axis=1)
    np.testing.assert_allclose(lengths, np.linalg.svd(right.astype(np.float64), compute_uv=False), atol=1e-7)


def test_recycled_factors_leave_less_behind():
    """Of gradients whose rows lie in a few lasting directions, as the inputs of a layer do, and whose columns change at each step."""
    lasting, left = np.random.default_rng(1).standard_normal((300, 6)), {}
    for recycle in (0, 3, 6):
        methods, norms = make(2, recycle=recycle), []
        for step in range(60):
            gradients = gradients_of(step, 2, 0.1)
            for worker, own in enumerate(gradients):
                own[2] = (own[2] + lasting @ np.random.default_rng([step, worker]).standard_normal((6, 40))).astype(np.float32)
            reduce_on_host(methods, gradients)
            norms.append(np.linalg.norm(sum(_left(method, 1) for method in methods)))
        left[recycle] = np.mean(norms[30:])
    assert left[6] < 0.8 * left[3] < 0.8 * left[0]


def test_factors_stay_orthonormal_over_many_steps():
    methods = make(1)
    for step in range(2000):
        reduce_on_host(methods, gradients_of(step % 50, 1))
    for place in range(2):
        left = methods[0].memory[4 * place + 1].array.astype(np.float64)
        np.testing.assert_allclose(left @ left.T, np.eye(len(left)), atol=1e-4)


@pytest.mark.parametrize("low_rank", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("factors", [2, 7])
@pytest.mark.parametrize("pull", [0, 0.02])
def test_momentum_is_kerass_formula(low_rank, threads, factors, pull, monkeypatch):
    monkeypatch.setattr("trainer.network.host_array.SPLIT_FROM", 100)
    random = np.random.default_rng(0)
    left, right = (random.standard_normal((factors, size)).astype(np.float32) for size in (70, 50))
    velocity, weights = (random.standard_normal((70, 50)).astype(np.float32) for _ in range(2))
    updated, before = weights.copy(), velocity.astype(np.float64)
    product = (left.T.astype(np.float64) @ right).astype(np.float32)
    crew = RowPool(threads)
    arguments = (left, right) if low_rank else (product,)
    loop = kernels.momentum_low_rank if low_rank else kernels.momentum_dense
    crew.run(loop, crew.parts(70, 50), *arguments, velocity, updated, np.float32(0.9), np.float32(0.1), np.float32(0.01), np.float32(pull))
    expected = 0.9 * before - 0.1 * product - pull * weights
    np.testing.assert_allclose(velocity, expected, atol=1e-5)
    np.testing.assert_allclose(updated, weights - 0.01 * weights + expected, atol=1e-5)


OPS = """
import json, sys
import numpy as np
import tensorflow as tf
from trainer.network.bfloat16 import KIND, narrow, widen
from trainer.config.schema import Reduction
from trainer.reduction.method import Setting
from trainer.reduction import powersgd_host
sys.path.insert(0, "tests/unit/trainer/reduction")
import test_powersgd as tests

workers = 3
methods = [powersgd_host.make_method(tests.config(), tests.SHAPES, Setting(workers, False, seed=7)) for _ in range(workers)]
reference, worst = tests.Reference(2, 7, 3), 0.0
for step in range(10):
    gradients = tests.gradients_of(step, workers) if step != 9 else [[np.zeros(shape, np.float32) for shape in tests.SHAPES]] * workers
    hands = [[tf.zeros(4), *map(tf.constant, own)] for own in gradients]
    for number in range(3):
        stayed, sent = zip(*(method.computations[number](hand) for method, hand in zip(methods, hands)))
        total = [tf.add_n(parts) for parts in zip(*sent)]
        hands = [[*kept, *total] for kept in stayed]
    for found, expected in zip(hands[0][1:], reference.reduce(gradients)):
        worst = max(worst, float(np.abs(found - expected).max() / np.abs(expected).max()))
print(json.dumps({"worst": worst, "memory": [list(array.shape) for array in methods[0].memory]}))
"""


def test_in_tensorflows_ops_it_is_the_same():
    actual = forked.answer(OPS)
    assert actual["worst"] < 2e-3
    assert actual["memory"] == [[1, 54, 20], [1, 300, 40], [1, 20, 2], [1, 40, 2], [1, 54, 3], [1, 300, 3]]
