"""One look at a worker: whether it is alive, what it does, when it was last heard."""

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from control.operator_variables import integer
from control.remote.remote import HostUnreachable, Worker
from control.runs import run_results, status
from plugins.shared import action


def _concluded(folder: Path) -> bool:
    """Whether the outcome is already recorded here; the chief of a failed run still says RUNNING."""
    return run_results.read_summary(folder)["state"] not in (None, "RUNNING")


class ActionModule(ActionBase):
    """Returns `seen`; an unreachable host is a state, not a failure. With `lines`, also the log's end; with `local`, collects results."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look once."""
        result = super().run(tmp, task_vars)
        arguments = self._task.args
        with action.refusing():
            lines = integer("lines", arguments.get("lines", 1))
        worker = Worker(self, arguments["run_folder"], arguments["folder"], arguments["session"])
        try:
            look = worker.poll(latest=True)
            seen = status.worker(look.records, look.exit, look.alive, look.heard, look.unclear)
            if arguments.get("local") and not self._task.check_mode:
                only = None if int(arguments["rank"]) == 0 else f"workers/{arguments['host']}"
                worker.collect(Path(arguments["local"]), only, keep=_concluded(Path(arguments["local"])) and not look.alive)
            if "lines" in arguments:
                seen["log"] = worker.last_lines(lines)
        except HostUnreachable as error:
            seen = {"state": "unreachable", "note": str(error)}
        result["seen"] = {"host": arguments["host"], **seen}
        return result
