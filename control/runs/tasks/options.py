"""Operator variables: refuse those that a command does not take, and invalid states."""

from typing import Any

from control.common import command_line
from control.common.operator_variables import check_state
from control.common.task import Task


def check(task: Task) -> dict[str, Any]:
    """For commands that need nothing else from the control node."""
    check_state(command_line.operator_options(task.arguments["command"], task.task_vars))
    return {}
