"""Put the published dataset and the trainer package where every worker reads them, unless they are there."""

import shlex
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from plugins.shared.upload import with_progress


class ActionModule(ActionBase):
    """Runs on one host: the distributed file system makes one copy enough for all."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look, and send what is missing."""
        result = super().run(tmp, task_vars)
        published, place, host = (self._task.args[name] for name in ("published", "path", "host"))
        dataset, code = f"{place}/datasets/{published['name']}", f"{place}/code/{published['code_name']}"
        missing = self._missing([f"{dataset}/manifest.json", code])
        if f"{dataset}/manifest.json" in missing:
            with_progress(self, "the dataset", host).folder(Path(published["folder"]), dataset)
        if code in missing:
            with_progress(self, "the trainer", host).file(Path(published["code"]), code)
        result["changed"] = bool(missing)
        return result

    def _missing(self, paths: list[str]) -> list[str]:
        names = " ".join(shlex.quote(path) for path in paths)
        done = self._low_level_execute_command(
            f'for f in {names}; do test -e "$f" || echo "$f"; done', sudoable=False, executable="/bin/sh"
        )
        return str(done["stdout"]).splitlines()
