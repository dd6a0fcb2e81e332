"""Checks whether a host can be measured now."""

from typing import Any

from control.common.task import Task
from trainer.common.errors import LockstepError


def check_host(task: Task) -> dict[str, Any]:
    """Check what the probe found. Refuses the host, or returns nothing."""
    check(task.arguments["host"], task.arguments["looked"])
    return {}


def check(host: str, looked: dict[str, Any]) -> None:
    """Refuse a host that can't be measured now."""
    if "facts" not in looked:
        raise LockstepError(f"{host}: {looked.get('msg', 'no answer')}")
    facts = looked["facts"]
    if "error" in facts["python"]:
        raise LockstepError(f"{host}: {facts['python']['path']} {facts['python']['error']}; make it: ansible-playbook provision.yml")
    if facts["port"]["state"] == "held":
        run = facts["port"]["run"]
        raise LockstepError(
            f"{host}: run={run} trains there, and times taken beside it would be wrong; wait for its end, or stop it: "
            f"ansible-playbook stop.yml -e run={run}"
        )
