"""One worker of a cell: start its program in tmux, wait for its end, fetch its measurements, leave nothing running."""

import shlex
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from benchmarks.analysis import peers
from control.remote import checked_code, lean
from control.remote.remote import MARK, TMUX
from control.runs import logs
from control.runs.cluster import endpoint
from plugins.shared import action
from trainer import records
from trainer.files import write_json

AFTER_S = 60
"""How long to wait for an answer after the program's own deadline."""


class ActionModule(ActionBase):
    """Writes `<out>/<rank>.json` on the control node: how the worker ended, the end of its log, its result."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Start, wait, fetch; the session is always ended."""
        result = super().run(tmp, task_vars)
        given, variables = self._task.args, task_vars or {}
        job, session = given["cell"], {"name": given["session"]}
        hosts = job["hosts"]
        rank = [host["name"] for host in hosts].index(given["host"])
        script = peers.start_script(self._job(given, rank))
        lean.require(self, "worker_files", {"files": [{"path": f"{given['folder']}/run.sh", "content": script, "mode": "0750"}]}, variables)
        try:
            started = lean.require(self, "tmux_session", {**session, "argv": ["bash", "run.sh"], "chdir": given["folder"]}, variables)
            if not started["changed"]:
                raise AnsibleActionFail(f"{given['host']}: session {given['session']} is left of another cell; see tmux ls there")
            with action.refusing():
                end = self._wait(given["folder"], given["session"], int(job["deadline"]) + AFTER_S)
        finally:
            lean.require(self, "tmux_session", {**session, "state": "absent", "grace": 2}, variables)
        write_json(Path(job["out"]) / f"{rank}.json", {"host": given["host"], "rank": rank, **end})
        return result

    def _job(self, given: dict[str, Any], rank: int) -> dict[str, Any]:
        job = given["cell"]
        cell, common = peers.Cell(**job["cell"]), peers.Settings(**job["settings"])
        threads = int(job["threads"][given["host"]])
        argv = peers.arguments(cell, rank, [endpoint(host) for host in job["hosts"]], common, threads)
        environment = {
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": 1,
            "TF_CPP_MIN_LOG_LEVEL": 2,
            "KERAS_HOME": f"{given['folder']}/keras",
            "NUMBA_CACHE_DIR": f"{given['caches']}/kernels",
            **peers.PROCESS.get(peers.SYSTEMS[cell.system].environment, {}),
        }
        program = peers.SYSTEMS[cell.system].program
        # Imported, not run with -m: TensorFlow reads a function's source by the name of its module.
        start = f"import {program}; {program}.main()"
        checked = checked_code.command(given["python"], given["code"], job["code_sha256"], given["caches"])
        command = [*checked, "-c", start, *argv, "--result", f"{given['folder']}/result.json"]
        return {"environment": environment, "argv": command, "folder": given["folder"], "deadline": job["deadline"]}

    def _wait(self, folder: str, session: str, seconds: int) -> dict[str, Any]:
        """One call that sleeps on the host until the session's first process is gone: nothing polls while steps are timed."""
        quoted = shlex.quote(folder)
        script = (
            f"pid=$({TMUX} list-panes -s -t {shlex.quote(f'={session}:')} -F '#{{pane_pid}}' 2>/dev/null | head -n 1); "
            f'if [ -n "$pid" ]; then timeout {seconds} tail --pid="$pid" -s 0.5 -f /dev/null; fi; cd {quoted} && '
            f"{{ echo {MARK}; cat exit 2>/dev/null; echo {MARK}; cat result.json 2>/dev/null; echo; echo {MARK}; tail -n 30 worker.log; }}"
        )
        output = str(self._low_level_execute_command(script, sudoable=False, executable="/bin/bash")["stdout"])
        return parse(output)


def parse(output: str) -> dict[str, Any]:
    """How a worker ended, from the output of the wait: `exit`, `result`, `lines` of its log."""
    parts = [part.strip("\n") for part in output.split(MARK)]
    if len(parts) != 4:
        return {"exit": None, "result": None, "lines": logs.shown(output.split("\n"))[-5:]}
    _, code, result, log = parts
    read = records.answer(result, "result.json") if result else None
    return {"exit": int(code) if code.strip().isdecimal() else None, "result": read, "lines": logs.shown(log.split("\n"))}
