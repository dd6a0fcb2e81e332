"""The layout of a run directory, and which of its snapshots are kept."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.config.loading import load
from trainer.rundir.best_epoch import best_row

SERVER_LOG = "ps.log"
"""In the host's part of the run directory: what its parameter server writes."""
EVALUATIONS = "evaluations"
"""In the part of a host that evaluates snapshots while others train."""


def part_of(run: Path, host: str) -> Path:
    """A worker's part of a run directory."""
    return run / "workers" / host


def output_of(run: Path, host: str, is_chief: bool) -> Path:
    """Where a worker's user code may leave files: the chief's are the run's."""
    return (run if is_chief else part_of(run, host)) / "output"


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


def wanted(policy: str | int, rows: Sequence[dict[str, Any]], row: dict[str, Any], monitor: str | None = None) -> bool:
    """Return whether to write the snapshot of the epoch that just ended: any may be the last, but only some are the best so far."""
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
