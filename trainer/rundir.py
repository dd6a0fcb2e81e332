"""The layout of a run directory, and which of its snapshots a user means."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.config import load, nearest
from trainer.errors import LockstepError
from trainer.files import read_json
from trainer.monitor import best_row
from trainer.records import read_history

NUMBERS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
EVALUATIONS = "evaluations"
"""In the part of a host that evaluates snapshots while others train."""
WORDS = ("first", "best", "last", "all")


def recorded(run: Path | None) -> dict[str, Any]:
    """cluster.json of a run that was launched before, else an empty dict."""
    path = run / "cluster.json" if run else None
    return dict(read_json(path)) if path is not None and path.is_file() else {}


def snapshot_path(run: Path, epoch: int) -> Path:
    """Path of an epoch's snapshot."""
    return run / "checkpoints" / f"epoch-{epoch:04d}.keras"


def record_path(folder: Path, epoch: int) -> Path:
    """Path of an epoch's evaluation."""
    return folder / f"epoch-{epoch:04d}.json"


def existing_epochs(run: Path) -> list[int]:
    """Epochs that have a snapshot in a run directory."""
    names = (re.fullmatch(r"epoch-(\d+)\.keras", path.name) for path in (run / "checkpoints").glob("*.keras"))
    return sorted(int(name.group(1)) for name in names if name)


def kept(policy: str | int, existing: Sequence[int], rows: Sequence[dict[str, Any]], monitor: str | None = None) -> set[int]:
    """The existing epochs whose snapshots `checkpoint.snapshots` keeps, given the rows of the history and `train.monitor`."""
    # Snapshots of later epochs belong to an attempt that was not continued.
    current = [epoch for epoch in existing if rows and epoch <= rows[-1]["epoch"]]
    if policy == "all" or not current:
        return set(existing)
    if policy == "best":
        return {_best_epoch([row for row in rows if row["epoch"] in current], monitor)}
    every = policy if isinstance(policy, int) else 0
    return {epoch for epoch in current if epoch == current[-1] or (every and epoch % every == 0)}


def most_kept(policy: str | int, epochs: int) -> int:
    """The most snapshots that exist at once in a run of `epochs` epochs, including the one being written."""
    return min(epochs, {"all": epochs}.get(policy, 2) if isinstance(policy, str) else epochs // policy + 2)


def wanted(policy: str | int, rows: Sequence[dict[str, Any]], row: dict[str, Any], monitor: str | None = None) -> bool:
    """Whether to write the snapshot of the epoch that just ended: any may be the last, but only some are the best so far."""
    return policy != "best" or _best_epoch([*(old for old in rows if old["epoch"] < row["epoch"]), row], monitor) == row["epoch"]


def snapshot_name(policy: str | int, epoch: int) -> str:
    """A snapshot's name for messages; where only one snapshot is kept, the name is the same in every epoch."""
    alone = policy in ("best", "last") or (isinstance(policy, int) and epoch % policy != 0)
    return f"the {'best' if policy == 'best' else 'last'} snapshot" if alone else f"the snapshot of epoch {epoch}"


def prune(run: Path, policy: str | int, rows: Sequence[dict[str, Any]], monitor: str | None = None) -> None:
    """Remove the snapshots that `checkpoint.snapshots` does not keep."""
    existing = existing_epochs(run)
    for epoch in set(existing) - kept(policy, existing, rows, monitor):
        snapshot_path(run, epoch).unlink(missing_ok=True)


def snapshots_policy(run: Path) -> tuple[str | int, str | None]:
    """`checkpoint.snapshots` and `train.monitor` of a run; `all` and None for a run from before these keys existed."""
    path = run / "config.yml"
    raw = load(path) if path.is_file() else {}
    return raw.get("checkpoint", {}).get("snapshots", "all"), raw.get("train", {}).get("monitor")


def _best_epoch(rows: Sequence[dict[str, Any]], monitor: str | None) -> int:
    return int(best_row(rows, monitor)["epoch"])


def choose_epochs(asked: str, run: Path) -> list[int]:
    """Epochs for `12`, `1,12,30`, `2-5`, `first`, `best`, `last` or `all`, in that order; LockstepError if there is no snapshot of one."""
    existing = existing_epochs(run)
    if not existing:
        raise LockstepError(
            f"run={run.name}: none of its snapshots is here; the first is written at the end of epoch 1. "
            f"Fix: ansible-playbook train.yml -e run={run.name} watches it, or collects what it left if it has ended"
        )
    chosen: list[int] = []
    for word in str(asked).split(","):
        chosen += [epoch for epoch in _epochs_of(word.strip(), run, existing) if epoch not in chosen]
    return chosen


def _epochs_of(word: str, run: Path, existing: list[int]) -> list[int]:
    if word == "all":
        return existing
    if word in ("first", "last"):
        return [existing[0 if word == "first" else -1]]
    if word == "best":
        rows = [row for row in read_history(run / "history.csv") if row["epoch"] in existing]
        if not rows:
            raise LockstepError(f"epoch=best: {run.name} has no history.csv that says which epoch is best; name a number")
        return [_best_epoch(rows, snapshots_policy(run)[1])]
    numbers = NUMBERS.fullmatch(word)
    if not numbers or (numbers[2] and int(numbers[2]) < int(numbers[1])):
        raise LockstepError(f"epoch={word}: expected numbers as in 12, 1,12,30 or 2-5, or one of {', '.join(WORDS)}{nearest(word, WORDS)}")
    first, last = int(numbers[1]), int(numbers[2] or numbers[1])
    epochs = [epoch for epoch in existing if first <= epoch <= last]
    if len(epochs) != last - first + 1:
        which = "such snapshot" if first == last else "snapshot of some of these" if epochs else "such snapshots"
        policy, _ = snapshots_policy(run)
        because = "" if policy == "all" else f" (checkpoint.snapshots={policy} keeps no others)"
        raise LockstepError(f"epoch={word}: run {run.name} has no {which}; there are: {_ranges(existing)}{because}")
    return epochs


def marks(run: Path) -> dict[int, str]:
    """Which snapshots are the first, best and last: epoch -> `best, last`."""
    existing, words = existing_epochs(run), dict[int, str]()
    recorded_epochs = {row["epoch"] for row in read_history(run / "history.csv")}
    for word in ("first", *(["best"] if recorded_epochs & set(existing) else []), "last") if existing else ():
        (epoch,) = _epochs_of(word, run, existing)
        words[epoch] = f"{words[epoch]}, {word}" if epoch in words else word
    return words


def _ranges(numbers: list[int]) -> str:
    """`[1, 2, 3, 7]` as `1-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
