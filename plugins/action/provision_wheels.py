"""Put the gathered wheels on the distributed file system: one copy over one connection, for all hosts."""

import shlex
from pathlib import Path
from typing import Any

from control.remote.upload import with_progress
from plugins.shared.base_action import Action


class ActionModule(Action):
    """Runs on one host. An existing folder is complete: it was renamed into place."""

    def act(self, wheels: dict[str, Any], path: str, host: str) -> dict[str, Any]:
        """Look, and send what is missing."""
        missing = [one for one in wheels.values() if not self._is_published(f"{path}/{one['name']}")]
        if not self._task.check_mode:
            for one in missing:
                with_progress(self, f"wheels {one['name']}", host).folder(Path(one["folder"]), f"{path}/{one['name']}")
        return {"changed": bool(missing)}

    def _is_published(self, folder: str) -> bool:
        script = f"test -f {shlex.quote(folder)}/requirements.txt"
        return bool(self._low_level_execute_command(script, sudoable=False, executable="/bin/sh")["rc"] == 0)
