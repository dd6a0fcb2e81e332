"""PowerSGD's passes over one large matrix: compiled loops against TensorFlow ops and XLA.

    .venv/bin/python benchmarks/scripts/kernels.py [--rank 2] [--recycle 4] [--rows 28800] [--columns 128] [--images 64] [--rounds 15]

One thread; the matrix is the gradient of a fully connected layer, and its computation is part of the first pass.
Prints the CPU milliseconds of each pass: the median over rounds in which all take turns, so that each finds the others'
data in the caches, as in a training step.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.shared import script
from control.common import text

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["OPENBLAS_NUM_THREADS"] = "1"
Work = Callable[[], Any]
PROJECT, REPROJECT, UPDATE = PASSES = "gradient, error and P", "Q", "momentum and weights from the factors"


def main() -> None:
    """Time all passes in turn."""
    given = script.parser(__doc__, rank=2, recycle=4, rows=28800, columns=128, images=64, rounds=15).parse_args()
    sizes = (given.rows, given.columns), given.images, given.rank, given.rank + given.recycle
    ways = {"compiled": _compiled(*sizes), "ops": _tensorflow(*sizes, xla=False), "XLA": _tensorflow(*sizes, xla=True)}
    rounds = [[[_seconds(passes[name]) for passes in ways.values()] for name in PASSES] for _ in range(given.rounds + 1)][1:]
    medians = [[statistics.median(one) * 1000 for one in zip(*each, strict=True)] for each in zip(*rounds, strict=True)]
    rows = [[name, *(text.Number(one, 2) for one in times)] for name, times in zip(PASSES, medians, strict=True)]
    rows.append(["together", *(text.Number(sum(one), 2) for one in zip(*medians, strict=True))])
    print(f"{given.rows} x {given.columns}, {given.images} images, rank {given.rank}, {given.recycle} recycled factors, one thread")
    print(text.table(["processor ms", *ways], rows))


def _seconds(work: Work) -> float:
    """Processor time of one call."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _compiled(matrix: tuple[int, int], images: int, rank: int, factors: int) -> dict[str, Work]:
    """The passes of `trainer.reduction.kernels`."""
    import numpy as np

    from trainer.reduction import kernels
    from trainer.reduction.method import LowRank
    from trainer.reduction.powersgd_host import project_product

    random, (rows, columns) = np.random.default_rng(0), matrix
    error, velocity, weights = (random.standard_normal(matrix).astype(np.float32) * 1e-3 for _ in range(3))
    layer = LowRank(*(random.standard_normal((images, size)).astype(np.float32) for size in matrix))
    left, right = np.zeros((factors, rows), np.float32), random.standard_normal((factors, columns)).astype(np.float32)
    sent, new = (np.zeros_like(left), np.zeros_like(right)), np.zeros((rank, rows), np.float32)
    one: Any = (np.float32(0.9), np.float32(1e-3), np.float32(0), np.float32(0))
    return {
        PROJECT: lambda: project_product(0, rows, error, layer, *sent, right[:rank], new),
        REPROJECT: lambda: kernels.reproject(0, rows, error, left, np.zeros_like(right)),
        UPDATE: lambda: kernels.momentum_low_rank(0, rows, left, right, velocity, weights, *one),
    }


def _tensorflow(matrix: tuple[int, int], images: int, rank: int, factors: int, xla: bool) -> dict[str, Work]:
    """The passes in TensorFlow ops, or compiled by XLA."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    inputs, deltas = (tf.random.normal([images, size]) for size in matrix)
    error, velocity, weights = (tf.Variable(tf.random.normal(matrix) * 1e-3) for _ in range(3))
    left, right = (tf.random.normal([size, factors]) for size in matrix)

    def project() -> Any:
        gradient = error + tf.matmul(inputs, deltas, transpose_a=True)
        return gradient, tf.matmul(gradient, right[:, :rank])

    def reproject() -> Any:
        return tf.matmul(left, error, transpose_a=True)

    def update() -> Any:
        product = tf.matmul(left, right, transpose_b=True)
        error.assign(error - product)
        moved = velocity * 0.9 - 1e-3 * product
        velocity.assign(moved)
        weights.assign_add(moved)

    return {name: tf.function(work, jit_compile=xla) for name, work in {PROJECT: project, REPROJECT: reproject, UPDATE: update}.items()}


if __name__ == "__main__":
    main()
