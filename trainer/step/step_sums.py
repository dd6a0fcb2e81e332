"""Sums of steps over all workers, as a call returns them to Python, with the workers' requests to each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

STOP, SAVE = 1.0, 4096.0
"""A worker's requests to all workers after a call: to stop, and to save the state, which only the chief requests. Their sums can be
separated, because there are fewer devices than SAVE, and float32 is exact up to 2**24."""
FIRST = 2
"""Columns before those of metrics: requests, and images."""


@dataclass(frozen=True)
class StepSums:
    """Sums of those steps of a call that have ended."""

    table: np.ndarray
    """`[steps, columns]` float32: requests, number of trained images, states of the model's metrics, other logs of its step."""

    @classmethod
    def none(cls, metrics: int) -> "StepSums":
        """Sums of no step, with this many columns of metrics."""
        return cls(np.zeros((0, FIRST + metrics), np.float32))

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.table)

    def followed_by(self, tables: Sequence[np.ndarray]) -> "StepSums":
        """These steps, then those of other tables."""
        return StepSums(np.concatenate([self.table, *tables]))

    @property
    def requests(self) -> tuple[bool, bool]:
        """Two flags, equal on all workers: a worker requests a stop; the chief requests a save."""
        total = float(self.table[-1, 0]) if len(self) else 0.0
        return total % SAVE > 0, total >= SAVE

    @property
    def images(self) -> float:
        """Number of images, or other examples, trained in all steps."""
        return float(self.table[:, 1].astype(np.float64).sum())

    @property
    def metrics(self) -> np.ndarray:
        """Columns of the metrics, `[steps, columns]`."""
        return self.table[:, FIRST:]
