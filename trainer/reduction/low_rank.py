"""Ranks and shapes of PowerSGD's factors, wherever they are computed."""

import math
from dataclasses import dataclass

import numpy as np

from trainer.config.schema import Reduction

EVEN = 2**21
"""A matrix with at least this many elements has the configured rank."""
WORTH = 2
"""A matrix is compressed when its factors are at least this many times smaller."""


@dataclass(frozen=True)
class FactorSizes:
    """A gradient as a matrix that is sent as factors."""

    rows: int
    columns: int
    rank: int
    """New left factors that a step sends."""
    factors: int
    """Factors of the update: new and recycled ones, at most the smaller side."""

    @classmethod
    def of(cls, shape: tuple[int, ...], config: Reduction) -> "FactorSizes | None":
        """A tensor as a matrix, with its last axis as columns; None if compression does not pay."""
        columns, elements = shape[-1] if shape else 1, math.prod(shape)
        one = cls.of_matrix(elements // columns, columns, config)
        pays = elements >= config.min_elements and elements >= WORTH * (one.rank * one.rows + one.factors * columns)
        return one if pays else None

    @classmethod
    def of_matrix(cls, rows: int, columns: int, config: Reduction) -> "FactorSizes":
        """A matrix with the configured rank, at most its smaller side.

        One with fewer than `EVEN` elements, such as a convolution's, is further from low rank: it gets more, as long as that pays.
        """
        elements = rows * columns
        worth = (elements // WORTH - config.recycle * columns) // (rows + columns)
        more = min(config.max_rank, config.rank * EVEN // elements, worth)
        rank = min(max(config.rank, more), rows, columns)
        return cls(rows, columns, rank, min(rank + config.recycle, rows, columns))

    @property
    def recycled(self) -> int:
        """Strongest left factors of the last step, which are used again."""
        return self.factors - self.rank

    def start(self, number: int, seed: int) -> np.ndarray:
        """The first Q of gradient `number`, transposed `[rank, columns]`: the same random numbers on all workers."""
        random = np.random.Generator(np.random.Philox(key=[seed, number]))
        return random.standard_normal((self.rank, self.columns)).astype(np.float32)
