"""The snapshots that a person means by `epoch=`."""

from pathlib import Path
from typing import Any

from plugins.shared import control
from trainer import rundir


class ActionModule(control.ControlAction):
    """Returns `epochs` and their `files`, relative to the run directory."""

    def act(self) -> dict[str, Any]:
        """Choose, or refuse and list what there is."""
        folder = Path(self.arguments["folder"])
        epochs = rundir.choose_epochs(str(self.arguments["epoch"]), folder)
        files = [str(rundir.snapshot_path(folder, epoch).relative_to(folder)) for epoch in epochs]
        return {"epochs": epochs, "files": files}
