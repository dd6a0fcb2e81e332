"""Choice of the best epoch: the metric that decides, and whether its highest or its lowest value is best."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

LOWEST = re.compile(
    r"loss|error|divergence|perplexity|crossentropy|hinge|poisson|log_?cosh|huber|brier|false_(positives|negatives)"
    r"|(^|_)(mae|mse|rmse|msle|mape|fid)($|_)"
)
"""Metrics of which the lowest value is best."""
RESTORED = "restored_epoch"
"""Column of history.csv, in the last row only: the epoch whose weights a callback restored at the end; 0 if the callback does not say."""
DEFAULTS = ("val_accuracy", "val_loss", "loss")


class Monitor(NamedTuple):
    """A column of history.csv."""

    metric: str
    highest: bool

    @property
    def label(self) -> str:
        """As in a sentence: `validation accuracy`."""
        return self.metric.replace("val_", "validation ", 1).replace("_", " ")

    @property
    def rule(self) -> str:
        """As in a sentence: `the highest validation accuracy`."""
        return f"the {'highest' if self.highest else 'lowest'} {self.label}"

    @property
    def is_share(self) -> bool:
        """True if the metric's values are shares, which percentages show best."""
        return self.metric.endswith("accuracy")

    def best(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The row of the best epoch; a row without the metric comes last.

        Of equals it is that with the lower loss, on the same examples, then the earliest. If a callback gave the model other weights at
        the end, the last epoch is the best, with the values of the epoch that those weights are from (`RESTORED`).
        """
        if RESTORED in (last := rows[-1]):
            source = next((row for row in rows if row["epoch"] == last[RESTORED]), {})
            return {**last, **source, "epoch": last["epoch"], RESTORED: last[RESTORED]}
        loss = "val_loss" if self.metric.startswith("val_") else "loss"
        return max(rows, key=lambda row: (*self._value(row), -row.get(loss, math.inf), -row["epoch"]))

    def improved(self, rows: Sequence[dict[str, Any]]) -> int:
        """The last epoch with a better value than all before it."""
        return int(max(rows, key=lambda row: (*self._value(row), -row["epoch"]))["epoch"])

    def _value(self, row: dict[str, Any]) -> tuple[bool, float]:
        return self.metric in row, (1 if self.highest else -1) * row.get(self.metric, 0.0)


def monitor(columns: Iterable[str], asked: str | None = None) -> Monitor:
    """The metric that decides: `asked` (`train.monitor`), else the first of `DEFAULTS` among the columns of history.csv, else any."""
    if asked:
        order, colon, name = asked.rpartition(":")
        return Monitor(name, order == "max" if colon else not LOWEST.search(name))
    names = list(columns)
    name = next((name for name in DEFAULTS if name in names), names[1] if len(names) > 1 else DEFAULTS[-1])
    return Monitor(name, not LOWEST.search(name))


def judged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of epochs that ended with a validation; all, if none did."""
    return [row for row in rows if any(name.startswith("val_") for name in row)] or list(rows)


def stalled(rows: Sequence[dict[str, Any]], asked: str | None, patience: int | None) -> bool:
    """Return whether the last `patience` validations were no better than one before them; None: never. As Keras' EarlyStopping counts."""
    if patience is None or not rows:
        return False
    validations = judged(rows)
    best = monitor(validations[0], asked).improved(validations)
    return sum(row["epoch"] > best for row in validations) >= patience


def best_row(rows: Sequence[dict[str, Any]], asked: str | None = None) -> dict[str, Any]:
    """The row of the best epoch; `asked` is `train.monitor`."""
    return monitor(judged(rows)[0], asked).best(rows)
