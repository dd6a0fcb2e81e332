"""What is written of a run when it is launched: `cluster.json` and `config.yml`."""

import datetime
import secrets
import subprocess
import time
from pathlib import Path
from typing import Any

from plugins.shared import control
from trainer.analysis import evaluations
from trainer.errors import LockstepError
from trainer.files import write_json, write_text
from trainer.rundir import recorded


def record(plan: dict[str, Any], published: dict[str, Any], hosts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """What `cluster.json` holds.

    Args:
        plan: of the run, as `plan_run` makes it.
        published: the dataset and the trainer's code on the shared file system.
        hosts: by rank, with what is known of each.
        more: what else is to be found there.
    """
    return {
        "run": plan["run"],
        # Stays through all launches of a run; a later run of the same name has another.
        "id": recorded(Path(plan["folder"])).get("id") or secrets.token_hex(8),
        "launched_at": time.time(),
        "created_at": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "dataset": {**plan["dataset"], "digest": published["digest"], "folder_name": published["name"]},
        "code": published["code_name"],
        "counts": plan["counts"],
        "parameters": plan["parameters"],
        "hosts": hosts,
        **more,
    }


def write(folder: Path, plan: dict[str, Any], written: dict[str, Any]) -> None:
    """Both files, in the run's directory on the control node; what is known of an epoch that was not finished is forgotten."""
    evaluations.forget(folder / "evaluations.csv", control.read_summary(folder).get("epochs_done", 0))
    write_json(folder / "cluster.json", written)
    write_text(folder / "config.yml", plan["config_yaml"])


def tell(folder: Path) -> None:
    """Note that the end of a run's job has been told."""
    record = recorded(folder)
    write_json(folder / "cluster.json", record | {"slurm": record["slurm"] | {"told": True}})


def untold(record: dict[str, Any]) -> str:
    """Number of the last job of a run if nobody has seen how it ended.

    Args:
        record: what its cluster.json holds; empty where there is none.
    """
    job = record.get("slurm", {})
    return "" if job.get("told") else job.get("job", "")


def check_job(run: str, before: dict[str, Any]) -> None:
    """Refuse to go on with a run whose job nobody has collected: this launch would begin where that one did.

    Raises:
        LockstepError: which job, and what to do.
    """
    if job := untold(before):
        raise LockstepError(
            f"run={run}: job {job} of Slurm trains it, or did, and its results are not here yet; first: "
            f"ansible-playbook playbooks/slurm.yml -e run={run}"
        )


def revision() -> str | None:
    """The project's git revision, `+` when there are uncommitted changes; None outside git."""
    argv = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(argv, cwd=control.ROOT, capture_output=True, text=True, check=False, timeout=10)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
