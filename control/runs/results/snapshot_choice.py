"""Selection of a run's snapshots by the user."""

import re
from pathlib import Path

from trainer.common.errors import LockstepError
from trainer.common.suggest import nearest
from trainer.rundir.best_epoch import best_row
from trainer.rundir.layout import existing_epochs, snapshots_policy
from trainer.rundir.schemas import read_history

NUMBERS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
WORDS = ("first", "best", "last", "all")


def most_kept(policy: str | int, epochs: int) -> int:
    """The most snapshots that exist at once in a run of `epochs` epochs, including the one being written."""
    return min(epochs, {"all": epochs}.get(policy, 2) if isinstance(policy, str) else epochs // policy + 2)


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
        return [int(best_row(rows, snapshots_policy(run)[1])["epoch"])]
    numbers = NUMBERS.fullmatch(word)
    if not numbers or (numbers[2] and int(numbers[2]) < int(numbers[1])):
        raise LockstepError(f"epoch={word}: expected numbers as in 12, 1,12,30 or 2-5, or one of {', '.join(WORDS)}{nearest(word, WORDS)}")
    first, last = int(numbers[1]), int(numbers[2] or numbers[1])
    epochs = [epoch for epoch in existing if first <= epoch <= last]
    if len(epochs) != last - first + 1:
        which = "such snapshot" if first == last else "snapshot of some of these" if epochs else "such snapshots"
        policy, _ = snapshots_policy(run)
        because = "" if policy == "all" else f" (checkpoint.snapshots={policy} keeps no others)"
        raise LockstepError(f"epoch={word}: run {run.name} has no {which}; there are: {ranges(existing)}{because}")
    return epochs


def marks(run: Path) -> dict[int, str]:
    """First, best and last snapshot: epoch -> `best, last`."""
    existing, words = existing_epochs(run), dict[int, str]()
    recorded_epochs = {row["epoch"] for row in read_history(run / "history.csv")}
    for word in ("first", *(["best"] if recorded_epochs & set(existing) else []), "last") if existing else ():
        (epoch,) = _epochs_of(word, run, existing)
        words[epoch] = f"{words[epoch]}, {word}" if epoch in words else word
    return words


def ranges(numbers: list[int]) -> str:
    """Ascending numbers as `-e epoch=` takes them: `[1, 2, 3, 7]` as `1-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
