"""Records of a run's launch: `cluster.json` and `config.yml`."""

import datetime
import os
import secrets
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ansible import context

from control.common import command_line, project, text
from control.common.child_playbooks import Interrupted, Playbook, last_lines
from control.common.plan import Plan
from control.remote.published import Published
from control.runs.launch import reservations, under_way
from control.runs.results.run_folder import RunFolder
from control.runs.results.summary import Summary
from trainer.common.errors import LockstepError
from trainer.common.files import read_json, write_json, write_text
from trainer.common.plain_values import to_plain
from trainer.rundir.launch_record import RECORD, LaunchRecord

BEGUN = project.PRIVATE / "launches"
"""Folder with one file per launch in progress, which names the launching process: after a kill, the file remains."""
TAKE_BACK_S = 90.0
TAKE_BACK_LOG = project.PRIVATE / "take_back.log"


def record(plan: Plan, published: Published, **more: Any) -> LaunchRecord:
    """The record of a launch now.

    Args:
        plan: the run's plan, its hosts with what they answered.
        published: the dataset and the trainer's code on the shared file system.
        more: further entries.
    """
    folder = plan.folder
    entries: dict[str, Any] = {
        "id": LaunchRecord.read(folder).id or secrets.token_hex(8),
        "dataset": {**plan.dataset, "digest": published.digest, "folder_name": published.name, "manifest": published.manifest},
        **{key: getattr(plan, key) for key in ("run", "counts", "parameters", "compiled", "kept", "script", "ticket", "hosts", "spares")},
        **more,
    }
    return LaunchRecord(
        **entries,
        entered_at=command_line.entered(),
        launched_at=time.time(),
        created_at=datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        revision=_revision(),
        code=published.code_name,
        code_sha256=published.code_sha256,
        recovery=plan.config.get("recovery", {}),
        failed_before=Summary.read(folder).written.get("failure"),
    )


def write_launch(folder: Path, plan: Plan, written: LaunchRecord) -> None:
    """Write both files into the run's directory on the control node, and forget the records of an unfinished epoch."""
    run = RunFolder(folder)
    run.evaluations.forget(run.summary.epochs_done or 0)
    write_json(folder / RECORD, to_plain(written))
    write_text(folder / "config.yml", plan.config_yaml)
    under_way.keep(folder)


def begin(plan: Plan) -> dict[str, Any]:
    """Record the launch before anything starts, with the parent process as its owner; `end` is called when all workers run."""
    launch: dict[str, Any] = {
        "id": plan.nonce,
        "run": plan.run,
        "folder": str(plan.folder),
        "hosts": [host.name for host in plan.posts],
        "inventory": _inventory(),
        # A run that never ran has no settled options: treat it as only planned.
        "asked_yaml": None if plan.resume else plan.asked_yaml,
        "launcher": reservations.command(),
        "given_up": False,
        # For a run that was made only for this launch: needed once the launch is taken back.
        "state": "CANCELLED",
    }
    # A sweep itself ends the remains of its trials.
    if not RunFolder(plan.folder).is_trial:
        write_json(_note(launch["id"]), launch)
    return launch


def end(launch: dict[str, Any]) -> None:
    """Mark a launch as done."""
    _note(launch["id"]).unlink(missing_ok=True)


def end_all(folder: Path) -> None:
    """Mark all launches of a run directory as done."""
    for launch in _begun():
        if launch["folder"] == str(folder):
            end(launch)


def is_begun(folder: Path) -> bool:
    """Return whether a command is about to start the run of a folder."""
    return any(launch["folder"] == str(folder) for launch in _begun())


def _is_noted(launch: dict[str, Any]) -> bool:
    """Return whether a launch may have left processes or files."""
    return _note(launch["id"]).is_file()


def _begun() -> list[dict[str, Any]]:
    # Names with a leading dot are files that a killed process was writing.
    return [read_json(path) for path in sorted(BEGUN.glob("[0-9a-f]*.json"))]


def _note(launch: str) -> Path:
    return BEGUN / f"{launch}.json"


def forget_start(launch: dict[str, Any]) -> None:
    """Remove the record of a run's only launch, which was taken back; the request stays, and so does another launch's record."""
    folder = Path(launch["folder"])
    if LaunchRecord.read(folder).launch not in ("", launch["id"]):
        return
    if launch["asked_yaml"] is not None and Summary.read(folder).state in (None, "FAILED_PREFLIGHT"):
        under_way.forget(folder)
        (folder / RECORD).unlink(missing_ok=True)
        write_text(folder / "config.yml", launch["asked_yaml"])
        write_json(folder / "summary.json", {"state": launch["state"], "workers": len(launch["hosts"])})


def take_back(launch: dict[str, Any]) -> str:
    """Stop, with a playbook, all that a launch started on its hosts; return the resulting state."""
    TAKE_BACK_LOG.unlink(missing_ok=True)
    variables = {**command_line.extra_variables(), "broken_launches": [launch | {"given_up": True}]}
    deadline = time.monotonic() + TAKE_BACK_S
    try:
        code = Playbook("playbooks/stages/take_back.yml", variables, TAKE_BACK_LOG).run(lambda: time.monotonic() > deadline)
    except Interrupted:
        code = -1
    complete = code == 0 and not _is_noted(launch)
    lines = ["The launch was taken back: none of its workers is running."]
    if not complete:
        last = [f"  {line}" for line in last_lines(TAKE_BACK_LOG, 5)]
        lines = ["Not all of the launch could be taken back; the next train.yml tries again:", *last]
    if RunFolder(Path(launch["folder"])).is_users:
        again = ("start it", f"ansible-playbook train.yml -e run={launch['run']}")
        stop = ("stop it", f"ansible-playbook stop.yml -e run={launch['run']}")
        lines.append(text.next_commands([again] if complete else [again, stop]))
    return "\n".join(lines)


def broken(hosts: Collection[str]) -> list[dict[str, Any]]:
    """Launches on hosts of this inventory whose command ended before the launch was done."""
    lost = [one for one in _begun() if one["inventory"] == _inventory() and not reservations.lives(one["launcher"])]
    return [one | {"hosts": [name for name in one["hosts"] if name in hosts]} for one in lost]


def _inventory() -> list[str]:
    return [os.path.realpath(one) for one in context.CLIARGS.get("inventory") or ()]


def mark_collected(folder: Path) -> None:
    """Record that the end of a run's job has been reported."""
    written = read_json(folder / RECORD)
    write_json(folder / RECORD, written | {"slurm": written["slurm"] | {"told": True}})


def uncollected_job(record: LaunchRecord) -> str:
    """Number of a run's last job if its end was never reported."""
    return "" if record.slurm.get("told") else record.slurm.get("job", "")


def check_job(run: str, before: LaunchRecord) -> None:
    """Refuse to resume a run whose job was not collected: this launch would begin at the same state as that job.

    Raises:
        LockstepError: the job, and the fix.
    """
    if job := uncollected_job(before):
        raise LockstepError(
            f"run={run}: job {job} of Slurm trains it, or did, and its results are not here yet; first: "
            f"ansible-playbook playbooks/slurm.yml -e run={run}"
        )


def refuse_changes(plan: Plan, where: Sequence[str], doing: str = "") -> None:
    """Refuse options that differ from those of a training run: its workers read them once, when they start.

    Args:
        plan: the requested plan.
        where: hosts with living workers of the run, or its job; if empty, nothing is refused.
        doing: its progress, as `epoch 12 of 60`.

    Raises:
        LockstepError: the place where the run trains, the options that it can't adopt, and the fix.
    """
    if not where or not plan.changes:
        return
    run, far = plan.run, f" ({doing})" if doing else ""
    start = "playbooks/slurm.yml" if plan.command == "playbooks/slurm" else "train.yml"
    again = f"ansible-playbook {start} {plan.typed}"
    stop = f"ansible-playbook stop.yml -e run={run}" if start == "train.yml" else "scancel --signal=TERM JOB (squeue shows its number)"
    raise LockstepError(
        f"{'; '.join(plan.changes)}: run={run} is under way on {', '.join(where)}{far}, and such a run keeps the options it was "
        f"started with; nothing was changed.\n"
        f"Fix: stop it ({stop}), then continue it with the change: {again}\n"
        f"or wait for its end, then: {again}\n"
        f"To watch it as it is: ansible-playbook {start} -e run={run}"
    )


def launched_at(folder: str) -> float:
    """When a run directory on the control node was last launched, in seconds since 1970; 0 before the first launch."""
    return LaunchRecord.read(Path(folder)).launched_at


def _revision() -> str | None:
    """The project's git revision, with `+` if there are uncommitted changes; None outside git."""
    argv = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        completed = subprocess.run(argv, cwd=project.ROOT, capture_output=True, text=True, check=False, timeout=10)
    except FileNotFoundError:
        return None
    return completed.stdout.strip() or None if completed.returncode == 0 else None
