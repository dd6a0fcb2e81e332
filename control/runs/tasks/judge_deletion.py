"""Whether a run may be deleted: not while it is under way, and not while a host that holds a part of it is unreachable."""

from typing import Any

from control.task import Task
from trainer.errors import LockstepError


def judge_deletion(task: Task) -> dict[str, Any]:
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
