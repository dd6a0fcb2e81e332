"""One worker of a cell: start its program in tmux, wait for its end, fetch its measurements, leave nothing running."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from benchmarks.peer_results import peer_trials
from control.remote import checked_code, log_lines, modules, worker_files
from control.runs.hosts import inventory_hosts
from plugins.shared.base_action import Action
from trainer.common.files import write_json
from trainer.common.plain_values import from_plain
from trainer.host.claims import SOCKET
from trainer.rundir.launch_record import Host

TMUX = f"tmux -L {SOCKET}"
MARK = "=====lockstep====="
AFTER_S = 60
"""How long to wait for an answer after the program's own deadline."""


class ActionModule(Action):
    """Writes `<out>/<rank>.json` on the control node: how the worker ended, the end of its log, its result."""

    def act(self, cell: dict[str, Any], host: str, session: str, folder: str, **paths: str) -> dict[str, Any]:
        """Start, wait, fetch; the session is always ended."""
        rank = inventory_hosts.rank(cell["hosts"], host)
        script = start_script(**_job(cell, rank, host, folder, paths))
        modules.require(self, "worker_files", {"files": [{"path": f"{folder}/run.sh", "content": script, "mode": "0750"}]})
        try:
            start = {"name": session, "argv": ["bash", "run.sh"], "chdir": folder}
            if not modules.require(self, "tmux_session", start)["changed"]:
                raise AnsibleActionFail(f"{host}: session {session} is left of another cell; see tmux ls there")
            end = self._wait(folder, session, int(cell["deadline"]) + AFTER_S)
        finally:
            modules.require(self, "tmux_session", {"name": session, "state": "absent", "grace": 2})
        write_json(Path(cell["out"]) / f"{rank}.json", {"host": host, "rank": rank, **end})
        return {}

    def _wait(self, folder: str, session: str, seconds: int) -> dict[str, Any]:
        """One call that sleeps on the host until the session's first process is gone: nothing polls while steps are timed."""
        quoted = shlex.quote(folder)
        script = (
            f"pid=$({TMUX} list-panes -s -t {shlex.quote(f'={session}:')} -F '#{{pane_pid}}' 2>/dev/null | head -n 1); "
            f'if [ -n "$pid" ]; then timeout {seconds} tail --pid="$pid" -s 0.5 -f /dev/null; fi; cd {quoted} && '
            f"{{ echo {MARK}; cat exit 2>/dev/null; echo {MARK}; cat result.json 2>/dev/null; echo; echo {MARK}; tail -n 30 worker.log; }}"
        )
        output = str(self._low_level_execute_command(script, sudoable=False, executable="/bin/bash")["stdout"])
        return _parse(output)


def start_script(environment: Mapping[str, Any], argv: Sequence[str], folder: str, deadline: int) -> str:
    """The script that runs one worker of a cell, and ends it after `deadline` seconds."""
    exports = "\n".join(f"export {name}={shlex.quote(str(value))}" for name, value in environment.items())
    return f"""#!/usr/bin/env bash
# One worker of a cell of benchmarks/peers.yml, started in tmux; ends with the file `exit`.
set -u
cd {shlex.quote(folder)} || exit 1
rm -f exit result.json worker.log
{exports}
timeout --kill-after=10 {int(deadline)} {shlex.join(argv)} > worker.log 2>&1
echo $? > exit.part
mv exit.part exit
"""


def _job(job: dict[str, Any], rank: int, host: str, folder: str, paths: dict[str, str]) -> dict[str, Any]:
    """Input of `start_script`: a cell's program with its arguments."""
    cell, common = peer_trials.Cell(**job["cell"]), peer_trials.Settings(**job["settings"])
    threads, system = int(job["threads"][host]), peer_trials.SYSTEMS[cell.system]
    argv = cell.arguments(rank, [from_plain(Host, one).endpoint() for one in job["hosts"]], common, threads)
    environment = {
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": 1,
        "TF_CPP_MIN_LOG_LEVEL": 2,
        "KERAS_HOME": f"{folder}/keras",
        "NUMBA_CACHE_DIR": f"{paths['caches']}/kernels",
        **peer_trials.PROCESS.get(system.environment, {}),
    }
    # Imported, not run with -m: TensorFlow reads a function's source by the name of its module.
    start = f"import {system.program}; {system.program}.main()"
    checked = checked_code.command(paths["python"], paths["code"], job["code_sha256"], paths["caches"])
    command = [*checked, "-c", start, *argv, "--result", f"{folder}/result.json"]
    return {"environment": environment, "argv": command, "folder": folder, "deadline": job["deadline"]}


def _parse(output: str) -> dict[str, Any]:
    """How a worker ended, from the output of the wait: `exit`, `result`, `lines` of its log."""
    parts = [part.strip("\n") for part in output.split(MARK)]
    if len(parts) != 4:
        return {"exit": None, "result": None, "lines": log_lines.readable_lines(output.split("\n"))[-5:]}
    _, code, result, log = parts
    read = worker_files.answer(result, "result.json") if result else None
    return {"exit": int(code) if code.strip().isdecimal() else None, "result": read, "lines": log_lines.readable_lines(log.split("\n"))}
