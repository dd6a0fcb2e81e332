"""Delete a run: not while it is under way, or a host that holds a part of it is unreachable; at last its folder on the control node."""

import shutil
from typing import Any

from control import project
from control.runs import under_way
from control.runs.plan import check_run_name
from control.task import Task
from trainer.errors import LockstepError


def judge(task: Task) -> dict[str, Any]:
    """Runs once, on the control node, with every host's state (`seen`), and `squeue`'s answer for a Slurm run (`queued`)."""
    name, seen = task.arguments["run"], task.arguments["seen"]
    running = [look["host"] for look in seen if look.get("state") == "running"]
    if running:
        raise LockstepError(f"run={name} is under way on {', '.join(running)}; stop it first: ansible-playbook stop.yml -e run={name}")
    away = [f"{look['host']} ({look['note']})" for look in seen if look.get("state") == "unreachable"]
    if away:
        raise LockstepError(
            f"run={name}: {', '.join(away)} can't be reached, and holds a part of it; nothing was deleted. Try again when it can"
        )
    queued = task.arguments["queued"]
    if jobs := " ".join(queued.get("stdout", "").split()):
        raise LockstepError(f"run={name}: job {jobs} of Slurm is queued or runs; end it first: scancel {jobs}")
    # Without Slurm `squeue` can't be started (2), and there is no job.
    if queued.get("rc") == 1:
        raise LockstepError(f"run={name}: Slurm does not report whether it has a job: {queued['stderr']}")
    return {}


def forget(task: Task) -> dict[str, Any]:
    """Remove `runs/<run>`, if it exists. The last step of deleting a run: its hosts have already forgotten it."""
    name = str(task.arguments["run"])
    check_run_name(name)
    folder = project.RUNS / name
    exists = folder.is_dir()
    if exists and not task.check_mode:
        shutil.rmtree(folder)
        under_way.forget(folder)
    outcome = "would be deleted" if task.check_mode else "deleted"
    return {"changed": exists, "show_last": f"{name}: {outcome}\n\nNext\n  see what is left  ansible-playbook status.yml"}
