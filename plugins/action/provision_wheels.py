"""Put the gathered wheels on the distributed file system: one copy over one connection, for all hosts."""

import shlex
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from control.remote.upload import with_progress


class ActionModule(ActionBase):
    """Runs on one host. An existing folder is complete: it was renamed into place."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look, and send what is missing."""
        result = super().run(tmp, task_vars)
        missing = [one for one in self._task.args["wheels"].values() if not self._is_published(one["name"])]
        result["changed"] = bool(missing)
        if not self._task.check_mode:
            for one in missing:
                with_progress(self, f"wheels {one['name']}", self._task.args["host"]).folder(Path(one["folder"]), self._remote(one["name"]))
        return result

    def _remote(self, name: str) -> str:
        return f"{self._task.args['path']}/{name}"

    def _is_published(self, name: str) -> bool:
        script = f"test -f {shlex.quote(self._remote(name))}/requirements.txt"
        return bool(self._low_level_execute_command(script, sudoable=False, executable="/bin/sh")["rc"] == 0)
