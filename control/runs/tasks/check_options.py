"""Refuse operator variables that a command does not take, and invalid states."""

from typing import Any

from control import command_line
from control.operator_variables import check_state
from control.task import Task


def check_options(task: Task) -> dict[str, Any]:
    """For commands that need nothing else from the control node."""
    check_state(command_line.operator_options(task.arguments["command"], task.task_vars))
    return {}
