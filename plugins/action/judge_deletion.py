"""May a run be deleted? Not while it is under way, and not while a host that holds a part of it can't be reached."""

from typing import Any

from plugins.shared import control
from trainer.errors import LockstepError


class ActionModule(control.ControlAction):
    """Runs once, on the control node, with what was `seen` of every host, or with what `squeue` said of a run of Slurm's (`queued`)."""

    def act(self) -> dict[str, Any]:
        """Refuse, or let it be."""
        name, seen = self.arguments["run"], self.arguments.get("seen", [])
        running = [look["host"] for look in seen if look.get("state") == "running"]
        if running:
            raise LockstepError(f"run={name} is under way on {', '.join(running)}; stop it first: ansible-playbook stop.yml -e run={name}")
        away = [f"{look['host']} ({look['note']})" for look in seen if look.get("state") == "unreachable"]
        if away:
            raise LockstepError(
                f"run={name}: {', '.join(away)} can't be reached, and holds a part of it; nothing was deleted. Try again when it can"
            )
        _judge_queue(name, self.arguments.get("queued", {}))
        return {}


def _judge_queue(name: str, queued: dict[str, Any]) -> None:
    """Where there is no Slurm any more `squeue` can't be started (2), and there is no job."""
    jobs = queued.get("stdout", "").split()
    if jobs:
        raise LockstepError(f"run={name}: job {' '.join(jobs)} of Slurm is queued or runs; end it first: scancel {' '.join(jobs)}")
    if queued.get("rc") == 1:
        raise LockstepError(f"run={name}: Slurm does not tell whether a job of it runs: {queued['stderr']}")
