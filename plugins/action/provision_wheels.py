"""Put the gathered wheels on the distributed file system: one copy over one connection, for all hosts."""

import shlex
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from plugins.shared import control
from plugins.shared.upload import Upload
from trainer.analysis.progress import Line


class ActionModule(ActionBase):
    """Runs on one host. A folder that is there is whole: it was renamed into place."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look, and send what is missing."""
        result = super().run(tmp, task_vars)
        missing = [one for one in self._task.args["wheels"].values() if not self._there(one["name"])]
        result["changed"] = bool(missing)
        if not self._task.check_mode:
            for one in missing:
                self._upload(one["name"]).folder(Path(one["folder"]), self._place(one["name"]))
        return result

    def _place(self, name: str) -> str:
        return f"{self._task.args['path']}/{name}"

    def _there(self, name: str) -> bool:
        script = f"test -f {shlex.quote(self._place(name))}/requirements.txt"
        return bool(self._low_level_execute_command(script, sudoable=False, executable="/bin/sh")["rc"] == 0)

    def _upload(self, name: str) -> Upload:
        line = Line(Display(), control.terminal())

        def told(done: int, total: int) -> None:
            line.update(f"sending wheels {name} to {self._task.args['host']}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
            if done == total:
                line.end()

        return Upload(self, told)
