"""The result of `provision.yml -e state=absent`, and what remains."""

from typing import Any

from control import text
from control.task import Task


def removed(task: Task) -> dict[str, Any]:
    """Shows one row per host at the end."""
    packages = task.arguments["packages"].items()
    rows = [[name, str(len(one.get("removed", []))), ", ".join(one.get("kept", [])) or "-"] for name, one in packages]
    what = "would be removed; nothing was changed" if task.check_mode else "is removed; runs stay in worker_root/runs"
    head = f"What provisioning put on {len(rows)} hosts {what}"
    commands = [("put it back", "ansible-playbook provision.yml")]
    return {"show_last": f"{head}\n{text.table(['host', 'packages removed', 'kept'], rows)}\n\n{text.next_commands(commands)}"}
