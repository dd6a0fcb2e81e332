"""Test accuracy with and without compression over several seeds: training runs, tables, the picture's numbers. Pure functions."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from control.campaign import store
from control.common import text
from trainer.common.errors import ConfigError

REFERENCE = "packed"
"""The method that the others are compared with."""
METHODS = {REFERENCE: "reduction.name=packed", "half": "reduction.name=half"} | {
    f"powersgd{f'-{rank}' if rank else ''}": "reduction.name=powersgd" + (f",reduction.rank={rank}" if rank else "")
    for rank in (0, 1, 2, 4, 8)
}
METHODS["powersgd-paper"] = "reduction.name=powersgd,reduction.recycle=0,reduction.max_rank=1"


@dataclass(frozen=True)
class Training:
    """One training run of the comparison."""

    config: str
    method: str
    seed: int

    def run(self, name: str) -> str:
        """Name of the run."""
        return f"{name}.{self.config}.{self.method}.s{self.seed}".lower()


@dataclass(frozen=True)
class Row:
    """The result of a training run; one that failed has none."""

    measured: ClassVar[bool] = True
    config: str
    method: str
    seed: int
    epochs: int
    test_accuracy: float
    """After the last epoch."""
    test_accuracy_best: float
    """At the epoch with the best validation accuracy."""
    images_per_s: float
    seconds_training: float

    @property
    def trial(self) -> Training:
        """The training run of this row."""
        return Training(self.config, self.method, self.seed)


def trainings(configs: Sequence[str], methods: Sequence[str], seeds: Sequence[int]) -> list[Training]:
    """All training runs, ordered so that the methods take turns."""
    return [Training(config, method, seed) for seed in seeds for config in configs for method in methods]


def methods(asked: str) -> list[str]:
    """The methods in a list."""
    names = asked.split(",")
    for name in names:
        if name not in METHODS:
            raise ConfigError(f"methods={asked}: {name} is unknown; there are: {', '.join(METHODS)}")
    if REFERENCE not in names:
        raise ConfigError(f"methods={asked}: {REFERENCE} is what the others are compared to; add it")
    return names


STORE = store.Store(Row)


def compared(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every configuration and method over its seeds, in the order of the rows.

    `points`: how far the median is above the reference's over the same seeds, in hundredths; None for the reference.
    """
    return [_compared(rows, *which) for which in dict.fromkeys((row.config, row.method) for row in rows)]


def _compared(rows: Sequence[Row], config: str, method: str) -> dict[str, Any]:
    mine = [row for row in rows if (row.config, row.method) == (config, method)]
    seeds, accuracies = [row.seed for row in mine], [row.test_accuracy for row in mine]
    middle = statistics.median(accuracies)
    others = [row.test_accuracy for row in rows if (row.config, row.method) == (config, REFERENCE) and row.seed in seeds]
    return {
        "config": config,
        "method": method,
        "seeds": seeds,
        "test_accuracy": accuracies,
        "median": middle,
        "points": 100 * (middle - statistics.median(others)) if others and method != REFERENCE else None,
        "median_best": statistics.median(row.test_accuracy_best for row in mine),
        "images_per_s": statistics.median(row.images_per_s for row in mine),
    }


def table(rows: Sequence[Row]) -> str:
    """A table with one row per configuration and method."""
    numbers = ("median test accuracy", "lowest", "highest", "points", "median of best epochs", "images/s")
    cells = []
    for one in compared(rows):
        spread = [text.Number(value, 4) for value in (one["median"], min(one["test_accuracy"]), max(one["test_accuracy"]))]
        points = "-" if one["points"] is None else f"{one['points']:+.2f}"
        rest = [points, text.Number(one["median_best"], 4), text.Number(one["images_per_s"], 0)]
        cells.append([one["config"], one["method"], len(one["seeds"]), *spread, *rest])
    return text.table(["configuration", "method", "seeds", *numbers], cells)
