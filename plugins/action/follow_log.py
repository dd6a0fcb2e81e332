"""Show a worker's worker.log line by line, as it is written, until the worker ends."""

import os
import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from control.operator_variables import integer
from control.remote.remote import HostUnreachable, Worker
from plugins.shared import action

POLL_S = 1.0


class ActionModule(ActionBase):
    """Reads only: training goes on if this command ends. An unreachable host is reported and given up after `silence` seconds."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Follow."""
        result = super().run(tmp, task_vars)
        arguments, parent = self._task.args, os.getppid()
        with action.refusing():
            count = integer("lines", arguments["lines"])
        worker = Worker(self, arguments["run_folder"], arguments["folder"], arguments["session"])
        heard, lost, alive = time.monotonic(), False, True
        # Without its parent the command was killed, and nobody reads.
        while alive and os.getppid() == parent:
            try:
                lines, alive = worker.new_lines(count)
                heard, lost = time.monotonic(), False
            except HostUnreachable as error:
                lines = [] if lost else [f"can't be reached: {error}"]
                lost, alive = True, time.monotonic() - heard < float(arguments["silence"])
            for line in lines:
                Display().display(f"{arguments['host']}: {line}")
            if alive:
                time.sleep(POLL_S)
        return result
