"""Operator variables: refuse those that a command does not take, and invalid states; the snapshots selected by `epoch=`."""

from pathlib import Path
from typing import Any

from control.common import command_line
from control.common.operator_variables import check_state
from control.common.task import Task
from control.runs.results import snapshot_choice
from trainer.rundir import layout


def check(task: Task) -> dict[str, Any]:
    """For commands that need nothing else from the control node."""
    check_state(command_line.operator_options(task.arguments["command"], task.task_vars))
    return {}


def choose_epochs(task: Task) -> dict[str, Any]:
    """Select the snapshots, or refuse and list the existing ones.

    Returns `epochs` and their `files`, relative to the run directory.
    """
    folder = Path(task.arguments["folder"])
    epochs = snapshot_choice.choose_epochs(str(task.arguments["epoch"]), folder)
    files = [str(layout.snapshot_path(folder, epoch).relative_to(folder)) for epoch in epochs]
    return {"epochs": epochs, "files": files}
