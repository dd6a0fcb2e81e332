"""Ranks and shapes of PowerSGD's factors, wherever they are computed."""

import math

import numpy as np

from trainer.config.schema import Reduction

EVEN = 2**21
"""A matrix with at least this many elements has the configured rank."""
WORTH = 2
"""A matrix is compressed when its factors are at least this many times smaller."""


def rank_of(matrix: tuple[int, int], config: Reduction) -> int:
    """How many new left factors of a matrix a step sends, at most its smaller side.

    A matrix with fewer than `EVEN` elements, such as a convolution's, is further from low rank: it gets more, as long as that pays.
    """
    (rows, columns), elements = matrix, math.prod(matrix)
    worth = (elements // WORTH - config.recycle * columns) // (rows + columns)
    more = min(config.max_rank, config.rank * EVEN // elements, worth)
    return min(max(config.rank, more), *matrix)


def factors_of(matrix: tuple[int, int], config: Reduction) -> int:
    """How many factors the update of a matrix has: new and recycled ones, at most its smaller side."""
    return min(rank_of(matrix, config) + config.recycle, *matrix)


def matrix_of(shape: tuple[int, ...], config: Reduction) -> tuple[int, int] | None:
    """Rows and columns of a tensor as a matrix, with its last axis as columns; None if compression does not pay."""
    columns = shape[-1] if shape else 1
    elements = math.prod(shape)
    rows = elements // columns
    sent = rank_of((rows, columns), config) * rows + factors_of((rows, columns), config) * columns
    pays = elements >= config.min_elements and elements >= WORTH * sent
    return (rows, columns) if pays else None


def start(number: int, rank: int, columns: int, seed: int) -> np.ndarray:
    """The first Q, transposed `[rank, columns]`: the same random numbers on all workers."""
    random = np.random.Generator(np.random.Philox(key=[seed, number]))
    return random.standard_normal((rank, columns)).astype(np.float32)
