"""Refuse operator variables that a command does not take, and invalid states."""

from typing import Any

from control import command_line
from control.task import Task
from trainer.config import nearest
from trainer.errors import ConfigError

STATES = ("present", "absent")


class CheckOptions(Task):
    """For commands that need nothing else from the control node."""

    def act(self) -> dict[str, Any]:
        """Check the options."""
        options = command_line.operator_options(self.arguments["command"], self.task_vars)
        state = str(options.get("state", "present"))
        if state not in STATES:
            raise ConfigError(f"state={state}: expected present or absent{nearest(state, STATES)}")
        return {}
