"""The end of a run, read from its folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control.remote import worker_files
from control.runs.hosts import host_roles, run_recovery
from control.runs.results import outcome
from control.runs.results.outcome import Verdict
from control.runs.results.snapshot_choice import ranges
from trainer.common.files import read_json
from trainer.rundir.launch_record import Host, LaunchRecord
from trainer.rundir.layout import existing_epochs, kept, part_of, snapshot_path, snapshots_policy
from trainer.rundir.schemas import read_history


def read_summary(folder: Path) -> dict[str, Any]:
    """summary.json of a run directory; `{"state": None}` before there is one."""
    path = folder / "summary.json"
    return dict(read_json(path)) if path.is_file() else {"state": None}


def has_ended(summary: dict[str, Any]) -> bool:
    """Return whether a run's outcome is recorded."""
    return summary.get("state") not in (None, "RUNNING")


def remaining(folder: Path, hosts: Sequence[Host]) -> list[Host]:
    """A run's workers that do what follows training: not a spare, which may have trained, nor a host that was lost in the end."""
    lost = {one["host"] for one in read_summary(folder).get("lost") or ()}
    return [host for host in hosts if host.name not in lost]


def _missing_epochs(folder: Path) -> list[int]:
    """Epochs whose snapshots a run keeps, by its history, and that are not here."""
    policy, monitor = snapshots_policy(folder)
    rows, existing = read_history(folder / "history.csv"), set(existing_epochs(folder))
    wanted = kept(policy, sorted(existing | {row["epoch"] for row in rows}), rows, monitor) if rows else set()
    return sorted(wanted - existing)


def missing_snapshots(folder: Path) -> set[str]:
    """Their names in the run's directory."""
    return {snapshot_path(folder, epoch).relative_to(folder).as_posix() for epoch in _missing_epochs(folder)}


def lost_snapshots(folder: Path, summary: dict[str, Any]) -> str:
    """Sentence on the missing snapshots of a run that has ended; empty if none or all are missing, or some could not be saved."""
    if not has_ended(summary) or summary.get("unsaved") or not existing_epochs(folder):
        return ""
    epochs = _missing_epochs(folder)
    return f"none here of epoch {ranges(epochs)}: removed, or lost with the chief's disk before they were collected" if epochs else ""


def judged(folder: Path, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of a run's workers; evaluators, and hosts without which an elastic run went on, have not failed."""
    launch = LaunchRecord.read(folder)
    needed = outcome.without(verdicts, host_roles.evaluators(launch.hosts))
    return outcome.without_lost(needed, len(launch.hosts)) if run_recovery.is_elastic(folder) else needed


def concluded(folder: Path, verdicts: Sequence[Verdict], cancelled: bool = False) -> dict[str, Any]:
    """summary.json of a run directory, with the state that its workers' verdicts give; `cancelled`: they were told to stop."""
    summary = {"workers": len(verdicts), **read_summary(folder)}
    record = LaunchRecord.read(folder)
    summary["state"] = outcome.state(verdicts, summary["state"], cancelled, bool(record.script))
    if record.script:
        summary |= _of_script(folder, record)
    if "job" in record.slurm:
        summary["started_by"] = "playbooks/slurm.yml"
    summary.pop("failure", None)
    summary |= {"lost": lost} if (lost := outcome.lost(verdicts)) else {}
    spares = {host.name for host in record.spares}
    summary |= {"took_places": names} if (names := [verdict.host for verdict in verdicts if verdict.host in spares]) else {}
    cause = outcome.root_cause(verdicts)
    return summary | ({"failure": outcome.failure(cause)} if cause and summary["state"] == "FAILED" else {})


def _of_script(folder: Path, record: LaunchRecord) -> dict[str, Any]:
    """A script's part of its run's summary: the file, the number of restarts, the seconds of the chief's process."""
    path = part_of(folder, record.hosts[0].name) / "exit.json"
    ended = worker_files.end(path.read_text(encoding="utf-8")) if path.is_file() else {}
    seconds = {"seconds_total": round(ended["ended_at"] - ended["started_at"], 3)} if ended else {}
    return {"script": record.script["main"], "restarts": record.script["restarts"], **seconds}


def output(folder: Path) -> list[str]:
    """Names of the files that a script left on the chief."""
    return sorted(path.relative_to(folder / "output").as_posix() for path in (folder / "output").rglob("*") if path.is_file())
