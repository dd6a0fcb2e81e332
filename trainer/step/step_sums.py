"""Sums of steps over all workers, as a call returns them to Python, and what workers ask of each other with them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

STOP, SAVE = 1.0, 4096.0
"""Requests of a worker to all after a call: to stop, and to save the state, which only the chief requests. Sums stay apart: there are
fewer devices than SAVE, and float32 counts to 2**24."""
FIRST = 2
"""Columns before those of metrics: requests, and images."""


@dataclass(frozen=True)
class StepSums:
    """Sums of a call's steps, of those that have ended."""

    table: np.ndarray
    """`[steps, columns]` float32: the requests, how many images trained, the states of the model's metrics, other logs of its step."""

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
        """True if a worker asks all to stop, and if the chief asks them to save; equal on all workers."""
        total = float(self.table[-1, 0]) if len(self) else 0.0
        return total % SAVE > 0, total >= SAVE

    @property
    def images(self) -> float:
        """Number of images, or other examples, that trained in all steps."""
        return float(self.table[:, 1].astype(np.float64).sum())

    @property
    def metrics(self) -> np.ndarray:
        """Columns of the metrics, `[steps, columns]`."""
        return self.table[:, FIRST:]
