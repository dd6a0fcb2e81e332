"""The course of a run's training, from its epochs: one trend, and whether to train more epochs. Pure functions.

Every text on overfitting, the best epoch or longer training uses the verdict of `judge`, so texts never disagree.
Overfitting is Prechelt's generalisation loss: the percentage by which the last validation loss exceeds the lowest (Early Stopping - But
When?, Neural Networks: Tricks of the Trade, LNCS 1524, 1998).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from trainer.rundir.best_epoch import best_row, judged

OVERFITTING = 5.0
"""Generalisation loss in percent above which a run overfits; Prechelt's GL_5."""

Row = dict[str, Any]


class Trend(Enum):
    """Verdicts on the epochs; exactly one applies."""

    SINGLE = "one epoch shows no course"
    OVERFITS = "the loss on validation images rises while that on training images falls"
    RISING = "the last epoch is the best"
    PASSED = "the best epoch was before the last"


@dataclass(frozen=True)
class Course:
    """The epochs behind a trend; all are rows of history.csv."""

    trend: Trend
    best: Row
    """The best epoch by `train.monitor`, by default the highest validation accuracy; on a tie, the epoch with the lower loss."""
    low: Row
    """The epoch with the lowest validation loss, the earliest on a tie; the last epoch if there are no losses."""
    last: Row

    @property
    def rise(self) -> float:
        """Prechelt's generalisation loss in percent."""
        return _rise(self.low, self.last)

    @property
    def longer(self) -> bool:
        """True if more epochs are advised."""
        return self.trend in (Trend.SINGLE, Trend.RISING)


def _rise(low: Row, last: Row) -> float:
    """Percentage by which the validation loss of `last` exceeds that of `low`."""
    if low["val_loss"] > 0:
        return float((last["val_loss"] / low["val_loss"] - 1) * 100)
    return math.inf if last["val_loss"] > low["val_loss"] else 0.0


def _rises(rows: Sequence[Row], low: Row) -> bool:
    """Return whether the last two epochs follow the lowest validation loss, and are well above it."""
    return low not in rows[-2:] and all(_rise(low, row) > OVERFITTING for row in rows[-2:])


def judge(rows: Sequence[Row], asked: str | None = None) -> Course:
    """The trend over finished epochs, at least one; the first rule that holds decides. `asked` is `train.monitor`.

    1. A single epoch shows no course.
    2. A run overfits when its last two validation losses are more than `OVERFITTING` percent above its lowest, which came earlier, and the
      training loss kept falling after that: one epoch may be noise. More epochs are then not advised, even if the last has the highest
      accuracy.
    3. The last epoch is the best, by default by its validation accuracy: it may still improve.
    4. The best epoch came earlier: nothing is advised.
    """
    rows = judged(rows)
    top, last = best_row(rows, asked), rows[-1]
    has_losses = {"loss", "val_loss"} <= last.keys()
    low = min(rows, key=lambda row: (row["val_loss"], row["epoch"])) if has_losses else last
    if len(rows) == 1:
        trend = Trend.SINGLE
    elif has_losses and _rises(rows, low) and last["loss"] < low["loss"]:
        trend = Trend.OVERFITS
    else:
        trend = Trend.RISING if top is last else Trend.PASSED
    return Course(trend, top, low, last)
