"""One look at a worker: whether it is alive, what it does, when it was last heard."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

from control.common import project
from control.common.operator_variables import integer
from control.remote import modules
from control.remote.follow import HostUnreachable
from control.remote.worker_access import Worker, of_fault
from control.runs.results import generations
from control.runs.results.run_folder import RunFolder
from control.runs.show import status
from control.runs.show.status import WorkerSeen
from plugins.shared.base_action import Action
from trainer.rundir.metrics_log import WORKER_LOG

AGAIN_S = 1.0
"""Between two looks at a worker that may come back."""


def _is_chief(run: RunFolder, rank: int, seen: WorkerSeen) -> bool:
    """Return whether a worker is the chief; an elastic run gets another chief after the first was lost."""
    if not run.is_elastic:
        return rank == 0
    marks = project.PRIVATE / "watch" / run.name
    if seen.generation:
        generations.note(marks, seen.host, seen.generation)
    record = run.record
    names = [one.name for one in record.posts]
    return generations.chief(generations.noted(marks, names), names, len(record.hosts)) == seen.host


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

        def look() -> WorkerSeen:
            try:
                now = worker.poll(latest=True)
                seen = WorkerSeen.of(host, now.records, now.exit, now.alive, now.heard, now.unclear, script)
                if now.alive and now.fault:
                    seen = replace(seen, note=of_fault(now.fault, folder))
                if local and not self._task.check_mode:
                    run = RunFolder(Path(local))
                    only = None if _is_chief(run, int(rank), seen) else f"workers/{host}"
                    # The chief of a failed run still reports RUNNING.
                    worker.collect(run.path, only, keep=not run.summary.under_way and not now.alive)
                return seen if lines is None else replace(seen, log=worker.last_lines(count))
            except HostUnreachable as error:
                return WorkerSeen(host, "unreachable", note=str(error))

        seen = look()
        while seen.state in status.AWAY and time.monotonic() < deadline:
            time.sleep(AGAIN_S)
            seen = look()
        jobs = self._jobs(root) if root and seen.state != "unreachable" else {}
        return {**jobs, "seen": asdict(seen)}

    def _jobs(self, root: str) -> dict[str, Any]:
        """Answer of the module `worker_jobs`, which may have failed: what was seen of the worker is shown all the same."""
        try:
            return modules.execute(self, "worker_jobs", {"root": root})
        except AnsibleConnectionFailure:
            return {}
        except AnsibleActionFail as error:
            return {"failed": True, "msg": str(error)}
