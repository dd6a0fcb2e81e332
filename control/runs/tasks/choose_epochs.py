"""The snapshots selected by `epoch=`."""

from pathlib import Path
from typing import Any

from control.runs import snapshot_choice
from control.task import Task
from trainer import rundir


def choose_epochs(task: Task) -> dict[str, Any]:
    """Select the snapshots, or refuse and list the existing ones.

    Returns `epochs` and their `files`, relative to the run directory.
    """
    folder = Path(task.arguments["folder"])
    epochs = snapshot_choice.choose_epochs(str(task.arguments["epoch"]), folder)
    files = [str(rundir.snapshot_path(folder, epoch).relative_to(folder)) for epoch in epochs]
    return {"epochs": epochs, "files": files}
