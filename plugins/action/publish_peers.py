"""Put the peer programs and this project's trainer where every host reads them."""

from typing import Any

from ansible.plugins.action import ActionBase

from benchmarks.analysis import peers_wheels
from control.remote.shared_folder import Item, SharedFolder


class ActionModule(ActionBase):
    """Runs on one host."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look, and send."""
        result = super().run(tmp, task_vars)
        archive = peers_wheels.programs()
        folder = SharedFolder(self, self._task.args["host"])
        folder.agree([Item("the programs", archive, f"{self._task.args['path']}/code/{archive.name}")])
        return {**result, "changed": bool(folder.sent or folder.replaced), "show": folder.warning()}
