"""Put the peer programs and this project's trainer where every host reads them."""

import shlex
from typing import Any

from ansible.plugins.action import ActionBase

from plugins.shared import peers_wheels
from plugins.shared.upload import with_progress


class ActionModule(ActionBase):
    """Runs on one host; the file is named by its digest, so one that is there is right."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look, and send."""
        result = super().run(tmp, task_vars)
        archive = peers_wheels.programs()
        remote = f"{self._task.args['path']}/code/{archive.name}"
        there = self._low_level_execute_command(f"test -f {shlex.quote(remote)}", sudoable=False, executable="/bin/sh")["rc"] == 0
        if not there:
            with_progress(self, "the programs", self._task.args["host"]).file(archive, remote)
        result["changed"] = not there
        return result
