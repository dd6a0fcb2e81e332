"""Remove the examples and predictions that lie on this machine while they are made."""

import shutil
from typing import Any

from control.task import Task


class DiscardPrediction(Task):
    """Runs on the control node."""

    def act(self) -> dict[str, Any]:
        """Remove the folder."""
        shutil.rmtree(self.arguments["planned"]["folder"], ignore_errors=True)
        return {"changed": False}
