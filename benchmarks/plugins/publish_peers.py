"""Put the peer programs and this project's trainer where every host reads them."""

from typing import Any

from benchmarks.peer_results import peers_wheels
from control.remote.shared_folder import Item, SharedFolder
from plugins.shared.base_action import Action


class ActionModule(Action):
    """Runs on one host."""

    def act(self, path: str, host: str) -> dict[str, Any]:
        """Look, and send."""
        archive = peers_wheels.programs()
        folder = SharedFolder(self, host)
        folder.agree([Item("the programs", archive, f"{path}/code/{archive.name}")])
        return {"changed": bool(folder.sent or folder.replaced), "show": folder.warning()}
