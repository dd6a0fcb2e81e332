"""The snapshots that a person means by `epoch=`."""

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from plugins.shared import control
from trainer import rundir


class ActionModule(ActionBase):
    """Returns `epochs` and their `files`, relative to the run directory."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Choose, or refuse and list what there is."""
        result = super().run(tmp, task_vars)
        folder = Path(self._task.args["folder"])
        with control.refusing():
            epochs = rundir.choose_epochs(str(self._task.args["epoch"]), folder)
        files = [str(rundir.snapshot_path(folder, epoch).relative_to(folder)) for epoch in epochs]
        result.update(epochs=epochs, files=files)
        return result
