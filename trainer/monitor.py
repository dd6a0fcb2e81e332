"""Which epoch is the best: the metric that decides, and whether its highest or its lowest value is best."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

LOWEST = re.compile(
    r"loss|error|divergence|perplexity|crossentropy|hinge|poisson|log_?cosh|huber|brier|false_(positives|negatives)"
    r"|(^|_)(mae|mse|rmse|msle|mape|fid)($|_)"
)
"""Metrics of which the lowest value is best."""
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
        """Whether its values are shares, which percentages show best."""
        return self.metric.endswith("accuracy")

    def best(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The row of the best epoch, the earliest of equals; a row without the metric comes last."""
        sign = 1 if self.highest else -1
        return max(rows, key=lambda row: (self.metric in row, sign * row.get(self.metric, 0.0), -row["epoch"]))


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
    """Whether the last `patience` validations were no better than one before them; None: never. As Keras' EarlyStopping counts."""
    if patience is None or not rows:
        return False
    validations = judged(rows)
    best = best_row(validations, asked)["epoch"]
    return sum(row["epoch"] > best for row in validations) >= patience


def best_row(rows: Sequence[dict[str, Any]], asked: str | None = None) -> dict[str, Any]:
    """The row of the best epoch; `asked` is `train.monitor`."""
    return monitor(judged(rows)[0], asked).best(rows)
