"""Code shared by benchmark scripts: command line, alternating rounds, rows of earlier measurements."""

import argparse
import csv
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trainer.common.files import write_rows

ROOT = Path(__file__).resolve().parents[2]
K = TypeVar("K")
Row = TypeVar("Row")


def parser(description: str | None, **numbers: int) -> argparse.ArgumentParser:
    """A command line with whole numbers, by name and default."""
    line = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        line.add_argument(f"--{name}", type=int, default=default)
    return line


def in_turn(ways: Mapping[K, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter) -> dict[K, list[float]]:
    """Seconds of each way in rounds in which all take turns, so that all see the same machine; a first round is left out."""
    seconds: dict[K, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, work in ways.items():
            begun = clock()
            work()
            seconds[name].append(clock() - begun)
    return {name: taken[1:] for name, taken in seconds.items()}


def recorded(file: Path, kind: type[Row]) -> list[Row]:
    """The rows of earlier measurements, each a named tuple of this kind; its fields are str, int or float."""
    if not file.is_file():
        return []
    types = typing.get_type_hints(kind)
    with file.open(encoding="utf-8", newline="") as stream:
        return [kind(**{name: types[name](cell) for name, cell in row.items()}) for row in csv.DictReader(stream)]


def record(file: Path, rows: Sequence[Any]) -> None:
    """Write all rows, at least one: named tuples of the same kind."""
    write_rows(file, rows[0]._fields, (row._asdict() for row in rows))
