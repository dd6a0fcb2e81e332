"""Refuse operator variables that are unknown to a command, and invalid states."""

from typing import Any

from control.common import command_line
from control.common.operator_variables import check_state
from control.common.task import Task


def check(task: Task) -> dict[str, Any]:
    """Check the variables of a command that needs nothing else from the control node."""
    check_state(command_line.operator_options(task.arguments["command"], task.task_vars))
    return {}
