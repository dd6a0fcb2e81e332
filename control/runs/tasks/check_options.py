"""Refuse operator variables that a command does not take, and invalid states."""

from typing import Any

from control import command_line
from control.operator_variables import check_state
from control.task import Task


class CheckOptions(Task):
    """For commands that need nothing else from the control node."""

    def act(self) -> dict[str, Any]:
        """Check the options."""
        check_state(command_line.operator_options(self.arguments["command"], self.task_vars))
        return {}
