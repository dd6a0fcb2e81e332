"""Test accuracy with and without compression over several seeds: training runs, tables, the picture's numbers. Pure functions."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from control import campaign, text
from trainer.errors import ConfigError

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


STORE = campaign.Store(Row)


@dataclass(frozen=True)
class Compared:
    """One method on one configuration, over its seeds."""

    config: str
    method: str
    seeds: list[int]
    test_accuracy: list[float]
    median: float
    points: float | None
    """How far the median is above the reference's over the same seeds, in points (hundredths); None for the reference."""
    median_best: float
    images_per_s: float


def compared(rows: Sequence[Row]) -> list[Compared]:
    """Every configuration and method, in the order of the rows."""
    return [_compared(rows, *which) for which in dict.fromkeys((row.config, row.method) for row in rows)]


def _compared(rows: Sequence[Row], config: str, method: str) -> Compared:
    mine = of(rows, config, method)
    seeds = [row.seed for row in mine]
    middle = statistics.median(row.test_accuracy for row in mine)
    others = [row.test_accuracy for row in of(rows, config, REFERENCE) if row.seed in seeds]
    points = 100 * (middle - statistics.median(others)) if others and method != REFERENCE else None
    best, speed = (statistics.median(getattr(row, name) for row in mine) for name in ("test_accuracy_best", "images_per_s"))
    return Compared(config, method, seeds, [row.test_accuracy for row in mine], middle, points, best, speed)


def of(rows: Sequence[Row], config: str, method: str) -> list[Row]:
    """The rows of one configuration and method."""
    return [row for row in rows if (row.config, row.method) == (config, method)]


def table(rows: Sequence[Row]) -> str:
    """A table with one row per configuration and method."""
    header = [
        "configuration",
        "method",
        "seeds",
        "median test accuracy",
        "lowest",
        "highest",
        "points",
        "median of best epochs",
        "images/s",
    ]
    cells = []
    for one in compared(rows):
        numbers = [text.Number(value, 4) for value in (one.median, min(one.test_accuracy), max(one.test_accuracy))]
        points = "-" if one.points is None else f"{one.points:+.2f}"
        rest = [points, text.Number(one.median_best, 4), text.Number(one.images_per_s, 0)]
        cells.append([one.config, one.method, len(one.seeds), *numbers, *rest])
    return text.table(header, cells)
