"""Gather the wheels of the peers' environments on the control node; what is unavailable is noted, with the reason."""

from typing import Any

from ansible.utils.display import Display

from benchmarks.analysis import peers_wheels
from control import command_line
from control.progress import Line
from control.provision import wheels
from control.task import Task
from trainer.errors import LockstepError


def gather_peers(task: Task) -> dict[str, Any]:
    """Gather each environment for each kind of host.

    Returns the facts `peers_wheels` (environment to kind of host to folder) and `peers_missing` (environment to reason).
    """
    line = Line(Display(), command_line.terminal(), every=10)
    gathered: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    for environment in task.arguments["environments"]:
        try:
            gathered[environment] = _gather(environment, task.arguments["hosts"], line)
        except LockstepError as error:
            missing[environment] = str(error)
            line.print(f"{environment} can't be measured: {error}")
    line.end()
    return {"ansible_facts": {"peers_wheels": gathered, "peers_missing": missing}}


def _gather(environment: str, hosts: dict[str, Any], line: Line) -> dict[str, Any]:
    unfit = [name for name, host in hosts.items() if not host["target"]]
    if unfit:
        raise LockstepError(f"{unfit[0]} has no Python from 3.11 to 3.13")
    # Peers are measured on CPUs, so their environments are the same on hosts with GPUs.
    targets = wheels.merged(wheels.Target(**{**host["target"], "gpu": False}) for host in hosts.values())
    needs = {"need_mb": peers_wheels.NEED_MB[environment], "modules": peers_wheels.MODULES[environment]}
    return {target.key: peers_wheels.gather(environment, target, line.update) | needs for target in targets}
