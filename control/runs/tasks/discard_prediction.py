"""Remove the examples and predictions that lie on this machine while they are made."""

import shutil
from typing import Any

from control.task import Task


def discard_prediction(task: Task) -> dict[str, Any]:
    """Runs on the control node."""
    shutil.rmtree(task.arguments["planned"]["folder"], ignore_errors=True)
    return {"changed": False}
