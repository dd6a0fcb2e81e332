"""`timings.csv` of a sweep: one row per measured trial, without the warm-up. Pure functions and one file."""

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trainer.errors import LockstepError
from trainer.files import write_rows

SUCCEEDED, FAILED = "SUCCEEDED", "FAILED"
WEAK, STRONG = "weak", "strong"
"""Weak scaling: every worker keeps its batch, so the global batch grows. Strong: the global batch stays, each worker's share shrinks."""


@dataclass(frozen=True, order=True)
class Trial:
    """One measurement: a complete launch."""

    scaling: str
    checkpoint_every: int
    """Steps between saved training states; 0: only at the end of an epoch."""
    epochs: int
    workers: int
    repeat: int
    """From 1."""


@dataclass(frozen=True)
class Timing:
    """One row: a trial and its times. A failed trial has None for all seconds and rates."""

    workers: int
    repeat: int
    epochs: int
    seconds_end_to_end: float | None
    """From the launch, before files are written to the hosts and sessions start, to the end of the last worker."""
    seconds_training: float | None
    """Steps, saved states and validation of all epochs, without start-up and snapshots."""
    images_per_s: float | None
    """Training images of all workers divided by the seconds of their steps."""
    checkpoint_every: int
    scaling: str
    state: str
    hosts: str
    """Names separated by spaces, in the order of rank."""

    @property
    def trial(self) -> Trial:
        """The trial of this row."""
        return Trial(self.scaling, self.checkpoint_every, self.epochs, self.workers, self.repeat)

    @property
    def measured(self) -> bool:
        """Whether there is a time; a trial that failed twice has none."""
        return self.state == SUCCEEDED


COLUMNS = tuple(field.name for field in fields(Timing))
_WHOLE, _TEXT = ("workers", "repeat", "epochs", "checkpoint_every"), ("scaling", "state", "hosts")


def read(path: Path) -> list[Timing]:
    """All rows, in the order of measuring; empty if there is no file.

    Raises:
        LockstepError: the file is not in the format of `write`.
    """
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise LockstepError(f"{path}: its columns are {reader.fieldnames}, expected {', '.join(COLUMNS)}; move it away to measure anew")
        return [_row(path, number, row) for number, row in enumerate(reader, 2)]


def _row(path: Path, number: int, row: dict[str, Any]) -> Timing:
    try:
        return Timing(**{name: _value(name, text) for name, text in row.items()})
    except (TypeError, ValueError) as error:
        raise LockstepError(f"{path}, line {number}: {error}; remove that line to measure its trial anew") from None


def _value(name: str, text: str) -> Any:
    if name in _TEXT:
        return text
    if name in _WHOLE:
        return int(text)
    return float(text) if text else None


def any_measured(path: Path) -> bool:
    """Whether a sweep has a measured trial: before that, its settings may change."""
    return any(row.measured for row in read(path))


def put(path: Path, timing: Timing) -> None:
    """Add a row, or replace the same trial's row; the file is always complete."""
    kept = [row for row in read(path) if row.trial != timing.trial]
    write_rows(path, COLUMNS, (asdict(row) for row in [*kept, timing]))
