"""Try sudo with the given password, so that a wrong one is reported before any change."""

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Returns `said`: why it failed; empty if it worked. A finding, not a failure: all hosts are judged at once."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Become root, and do nothing."""
        result = super().run(tmp, task_vars)
        try:
            completed = self._low_level_execute_command("true", executable="/bin/sh")
        except AnsibleError as error:
            result["said"] = " ".join(str(error).split())
            return result
        result["said"] = "" if completed["rc"] == 0 else reason(completed)
        return result


def reason(completed: dict[str, Any]) -> str:
    """The last line of sudo's output."""
    lines = [line.strip() for line in f"{completed['stdout']}\n{completed['stderr']}".splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {completed['rc']}"
