"""One look at a worker: whether it is alive, what it does, when it was last heard."""

import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

from control.common import project
from control.common.operator_variables import integer
from control.remote import modules
from control.remote.follow import HostUnreachable
from control.remote.worker_access import Worker, of_fault
from control.runs.hosts import run_recovery
from control.runs.results import generations, run_summary
from control.runs.show import status
from plugins.shared.base_action import Action
from trainer.rundir.launch_record import LaunchRecord
from trainer.rundir.metrics_log import WORKER_LOG

AGAIN_S = 1.0
"""Between two looks at a worker that may come back."""


def _concluded(folder: Path) -> bool:
    """Return whether the outcome is already recorded here; the chief of a failed run still reports RUNNING."""
    return run_summary.read_summary(folder)["state"] not in (None, "RUNNING")


def _is_chief(folder: Path, rank: int, host: str, seen: dict[str, Any]) -> bool:
    """Return whether a worker is the chief; an elastic run gets another chief after the first was lost."""
    if not run_recovery.is_elastic(folder):
        return rank == 0
    marks = project.PRIVATE / "watch" / folder.name
    if seen["generation"]:
        generations.note(marks, host, seen["generation"])
    record = LaunchRecord.read(folder)
    return generations.chief(marks, [one.name for one in record.posts], len(record.hosts)) == host


class ActionModule(Action):
    """Returns `seen`; an unreachable host is a state, not a failure.

    With `lines`, also the log's end; with `root`, also the `jobs` of the host, if it is reached; with `local`, collects results. A worker
    that is away may come back within `returns` seconds, as after a restart of its host.
    """

    def act(
        self,
        host: str,
        session: str,
        run_folder: str,
        folder: str,
        lines: Any = None,
        local: str = "",
        rank: int = 0,
        script: bool = False,
        returns: float = 0.0,
        log: str = WORKER_LOG,
        root: str = "",
    ) -> Any:
        """Look once, or until it is back."""
        worker, deadline = Worker(self, run_folder, folder, session, script, log), time.monotonic() + float(returns)
        count = integer("lines", 1 if lines is None else lines)

        def look() -> dict[str, Any]:
            try:
                now = worker.poll(latest=True)
                seen = status.worker(now.records, now.exit, now.alive, now.heard, now.unclear, script)
                if now.alive and now.fault:
                    seen["note"] = of_fault(now.fault, folder)
                if local and not self._task.check_mode:
                    only = None if _is_chief(Path(local), int(rank), host, seen) else f"workers/{host}"
                    worker.collect(Path(local), only, keep=_concluded(Path(local)) and not now.alive)
                return seen if lines is None else {**seen, "log": worker.last_lines(count)}
            except HostUnreachable as error:
                return {"state": "unreachable", "note": str(error)}

        seen = look()
        while seen["state"] in status.AWAY and time.monotonic() < deadline:
            time.sleep(AGAIN_S)
            seen = look()
        jobs = self._jobs(root) if root and seen["state"] != "unreachable" else {}
        return {**jobs, "seen": {"host": host, **seen}}

    def _jobs(self, root: str) -> dict[str, Any]:
        """Answer of the module `worker_jobs`, which may have failed: what was seen of the worker is shown all the same."""
        try:
            return modules.execute(self, "worker_jobs", {"root": root})
        except AnsibleConnectionFailure:
            return {}
        except AnsibleActionFail as error:
            return {"failed": True, "msg": str(error)}
