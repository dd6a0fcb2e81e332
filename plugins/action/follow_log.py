"""Show a worker's worker.log line by line, as it is written, until the worker ends."""

import contextlib
import os
import time
from typing import Any

from ansible.utils.display import Display

from control.common.operator_variables import integer
from control.remote.follow import HostUnreachable
from control.remote.worker_access import Worker
from plugins.shared.base_action import Action

WAIT_S = 1.0


class ActionModule(Action):
    """Reads only: training goes on if this command ends. An unreachable host is reported and given up after `silence` seconds."""

    def act(self, host: str, session: str, run_folder: str, folder: str, lines: Any, silence: Any, log: str) -> dict[str, Any]:
        """Follow."""
        parent, count = os.getppid(), integer("lines", lines)
        worker = Worker(self, run_folder, folder, session, log=log)
        heard, lost, alive = time.monotonic(), False, True
        with contextlib.closing(worker):
            # Without its parent the command was killed, and nobody reads.
            while alive and os.getppid() == parent:
                try:
                    news, alive = worker.new_lines(count, WAIT_S)
                    heard, lost = time.monotonic(), False
                except HostUnreachable as error:
                    news = [] if lost else [f"can't be reached: {error}"]
                    lost, alive = True, time.monotonic() - heard < float(silence)
                    time.sleep(WAIT_S)
                for line in news:
                    Display().display(f"{host}: {line}")
        return {}
