"""One look at a worker: is it alive, what does it do, how long since it was heard."""

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from plugins.shared import control
from plugins.shared.remote import Gone, Worker
from trainer.analysis import status
from trainer.plan import integer


def _concluded(folder: Path) -> bool:
    """Whether the outcome is recorded here already; the chief of a failed run still says RUNNING."""
    return control.read_summary(folder)["state"] not in (None, "RUNNING")


class ActionModule(ActionBase):
    """Returns `seen`; an unreachable host is a state, not a failure. With `lines`, also the log's end; with `local`, collects results."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look once."""
        result = super().run(tmp, task_vars)
        arguments = self._task.args
        with control.refusing():
            lines = integer("lines", arguments.get("lines", 1))
        worker = Worker(self, arguments["run_folder"], arguments["folder"], arguments["session"])
        try:
            look = worker.look()
            seen = status.worker(look.records, look.exit, look.alive, look.heard)
            if arguments.get("local") and not self._task.check_mode:
                only = None if int(arguments["rank"]) == 0 else f"workers/{arguments['host']}"
                worker.collect(Path(arguments["local"]), only, keep=_concluded(Path(arguments["local"])) and not look.alive)
            if "lines" in arguments:
                seen["log"] = worker.last_lines(lines)
        except Gone as error:
            seen = {"state": "unreachable", "note": str(error)}
        result["seen"] = {"host": arguments["host"], **seen}
        return result
