"""Try sudo with the given password, so that a wrong one is reported before any change."""

from typing import Any

from ansible.errors import AnsibleError

from plugins.shared.base_action import Action


class ActionModule(Action):
    """Returns `reason`: why it failed; empty if it worked. A finding, not a failure: all hosts are judged at once."""

    def act(self) -> dict[str, Any]:
        """Become root, and do nothing."""
        try:
            completed = self._low_level_execute_command("true", executable="/bin/sh")
        except AnsibleError as error:
            return {"reason": " ".join(str(error).split())}
        return {"reason": "" if completed["rc"] == 0 else reason(completed)}


def reason(completed: dict[str, Any]) -> str:
    """The last line of sudo's output."""
    lines = [line.strip() for line in f"{completed['stdout']}\n{completed['stderr']}".splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {completed['rc']}"
