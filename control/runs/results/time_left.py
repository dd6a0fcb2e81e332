"""The time that a run still takes."""

from typing import Any


class Estimate:
    """Time left, from finished epochs (validation and saving included) or the current speed."""

    def __init__(self, counts: dict[str, Any]):
        """Sizes of the run, as in the plan."""
        self._counts = counts
        self._epochs: list[tuple[float, int]] = []

    def epoch(self, at: float, epoch: int) -> None:
        """Record when an epoch ended."""
        self._epochs.append((at, epoch))

    def left(self, step: int, images_per_s: float) -> float | None:
        """Seconds left after `step`."""
        steps = self._counts["total_steps"] - step
        if len(self._epochs) >= 2:
            (first, start), (last, end) = self._epochs[0], self._epochs[-1]
            return (last - first) / ((end - start) * self._counts["steps_per_epoch"]) * steps
        return steps * self._counts["global_batch"] / images_per_s if images_per_s else None
