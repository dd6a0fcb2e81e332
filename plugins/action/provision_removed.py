"""What came of `provision.yml -e state=absent`, and what stays."""

from typing import Any

from plugins.shared import control
from trainer.analysis import text


class ActionModule(control.ControlAction):
    """Shows a row a host at the end."""

    def act(self) -> dict[str, Any]:
        """Show."""
        packages = self.arguments["packages"]
        rows = [row(name, one) for name, one in packages.items()]
        what = "would be removed; nothing was changed" if self._task.check_mode else "is removed; runs stay in worker_root/runs"
        head = f"What provisioning put on {len(rows)} hosts {what}"
        commands = [("put it back", "ansible-playbook provision.yml")]
        return {"show_last": f"{head}\n{text.table(['host', 'packages removed', 'kept'], rows)}\n\n{text.next_commands(commands)}"}


def row(name: str, result: dict[str, Any]) -> list[str]:
    """One host: how many packages went, which ones others need by now."""
    return [name, str(len(result.get("removed", []))), ", ".join(result.get("kept", [])) or "-"]
