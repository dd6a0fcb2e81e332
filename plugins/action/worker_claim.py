"""The module `worker_claim`, sent lean; adds the launch's secret to the files that it writes, past Ansible's arguments and logs."""

from typing import Any

from control.remote import modules
from control.runs.hosts import launch_secret
from plugins.shared.base_action import Action


class ActionModule(Action):
    """See `plugins/modules/worker_claim.py`; a file with `secret: true` gets the secret of `launch`, for its user alone."""

    def act(self, files: Any = (), **arguments: Any) -> dict[str, Any]:
        """Run the module."""
        written = [_with_secret(file, arguments["launch"]) if file.get("secret") else file for file in files]
        return modules.execute(self, "worker_claim", {**arguments, "files": written}, bool(self._task.check_mode))


def _with_secret(file: dict[str, Any], launch: str) -> dict[str, Any]:
    return {"path": file["path"], "content": launch_secret.of_launch(launch), "mode": "0600"}
