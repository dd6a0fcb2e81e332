"""What lies where in a run directory, and which of its snapshots a person means."""

import re
from pathlib import Path
from typing import Any

from trainer.config import nearest
from trainer.errors import LockstepError
from trainer.files import read_json
from trainer.telemetry import read_history

WORDS = ("first", "best", "last", "all")


def recorded(run: Path | None) -> dict[str, Any]:
    """cluster.json of a run that was launched before, or an empty dict."""
    path = run / "cluster.json" if run else None
    return dict(read_json(path)) if path is not None and path.is_file() else {}


def snapshot_path(run: Path, epoch: int) -> Path:
    """Where an epoch's snapshot lies."""
    return run / "checkpoints" / f"epoch-{epoch:04d}.keras"


def existing_epochs(run: Path) -> list[int]:
    """Epochs that have a snapshot in a run directory."""
    names = (re.fullmatch(r"epoch-(\d+)\.keras", path.name) for path in (run / "checkpoints").glob("*.keras"))
    return sorted(int(name.group(1)) for name in names if name)


def choose_epochs(asked: str, run: Path) -> list[int]:
    """Epochs for `12`, `1,12,30`, `first`, `best`, `last` or `all`, in the order asked, each once.

    Raises:
        LockstepError: no snapshot of that epoch (lists those that exist), or not understood.
    """
    there = existing_epochs(run)
    if not there:
        raise LockstepError(f"run={run.name}: there are no snapshots yet; the first is written at the end of epoch 1")
    chosen: list[int] = []
    for word in str(asked).split(","):
        chosen += [epoch for epoch in _epochs_of(word.strip(), run, there) if epoch not in chosen]
    return chosen


def _epochs_of(word: str, run: Path, there: list[int]) -> list[int]:
    if word == "all":
        return there
    if word in ("first", "last"):
        return [there[0 if word == "first" else -1]]
    if word == "best":
        rows = [row for row in read_history(run / "history.csv") if row["epoch"] in there]
        if not rows:
            raise LockstepError(f"epoch=best: {run.name} has no history.csv that says which epoch is best; name a number")
        return [max(rows, key=lambda row: (row["val_accuracy"], -row["epoch"]))["epoch"]]
    if not word.isdecimal():
        raise LockstepError(f"epoch={word}: expected numbers as in 12 or 1,12,30, or one of {', '.join(WORDS)}{nearest(word, WORDS)}")
    if int(word) not in there:
        raise LockstepError(f"epoch={word}: run {run.name} has no such snapshot; there are: {_ranges(there)}")
    return [int(word)]


def _ranges(numbers: list[int]) -> str:
    """`[1, 2, 3, 7]` as `1-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
