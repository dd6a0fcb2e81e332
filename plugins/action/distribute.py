"""Put the published dataset and the trainer package where every worker reads them, unless they are there."""

import shlex
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from plugins.shared import control
from plugins.shared.upload import Upload
from trainer.analysis.progress import Line


class ActionModule(ActionBase):
    """Runs on one host: the distributed file system makes one copy enough for all."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look, and send what is missing."""
        result = super().run(tmp, task_vars)
        published, place = self._task.args["published"], self._task.args["path"]
        dataset, code = f"{place}/datasets/{published['name']}", f"{place}/code/{published['code_name']}"
        missing = self._missing([f"{dataset}/manifest.json", code])
        if f"{dataset}/manifest.json" in missing:
            self._upload("dataset").folder(Path(published["folder"]), dataset)
        if code in missing:
            self._upload("trainer").file(Path(published["code"]), code)
        result["changed"] = bool(missing)
        return result

    def _missing(self, paths: list[str]) -> list[str]:
        names = " ".join(shlex.quote(path) for path in paths)
        done = self._low_level_execute_command(
            f'for f in {names}; do test -e "$f" || echo "$f"; done', sudoable=False, executable="/bin/sh"
        )
        return str(done["stdout"]).splitlines()

    def _upload(self, what: str) -> Upload:
        line = Line(Display(), control.terminal())

        def told(done: int, total: int) -> None:
            line.update(f"sending the {what} to {self._task.args['host']}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
            if done == total:
                line.end()

        return Upload(self, told)
