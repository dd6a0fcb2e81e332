"""Start or stop TensorBoard on the control node, in a tmux session, bound to the loopback address."""

import getpass
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from control import command_line, project, text
from control.operator_variables import check_state, integer
from control.remote.tmux import SOCKET
from control.runs import hparams
from control.runs.cluster import path_digest
from control.runs.plan import latest_run
from control.task import Task
from trainer.errors import LockstepError
from trainer.files import read_json, write_json

SESSION = f"tensorboard-{path_digest(str(project.ROOT))}"
TMUX = ["tmux", "-L", SOCKET]
RECORD = project.PRIVATE / "tensorboard.json"
DEADLINE_S = 60


class Tensorboard(Task):
    """`state=present` (default) starts it unless it is running; `state=absent` ends it."""

    def act(self) -> dict[str, Any]:
        """Start it, stop it, or report that there is nothing to do."""
        options = command_line.operator_options("tensorboard", self.task_vars)
        state, up = check_state(options), _is_up()
        if state == "absent":
            return {"changed": up, "show_last": self._stop(up)}
        return {"changed": not up} if self.check_mode else self._start(up, options)

    def _stop(self, up: bool) -> str:
        if up and not self.check_mode:
            subprocess.run([*TMUX, "kill-session", "-t", f"={SESSION}"], check=True, capture_output=True)
            _await_silence(read_json(RECORD)["port"] if RECORD.is_file() else None)
            RECORD.unlink(missing_ok=True)
        return "TensorBoard is stopped" if up else "TensorBoard was not running"

    def _start(self, up: bool, options: dict[str, Any]) -> dict[str, Any]:
        asked = integer("tensorboard_port", options["tensorboard_port"]) if "tensorboard_port" in options else None
        one = latest_run(project.RUNS, str(options["run"])) if "run" in options else None
        written, complaints = hparams.write_all([one] if one else _everything())
        folder = one or _view()
        before = read_json(RECORD) if up and RECORD.is_file() else {}
        wanted: dict[str, Any] = {"port": asked or before.get("port"), "folder": str(folder)}
        if wanted != before:
            self._stop(up)
            wanted["port"] = _free_port(asked, 1) if asked else _free_port(before.get("port", 6006), 50)
            _launch(folder, wanted["port"])
            write_json(RECORD, wanted)
        return {"changed": written > 0 or wanted != before, "show_last": "\n".join([_where(wanted["port"]), *complaints])}


def _everything() -> list[Path]:
    """Directories of all runs and of all sweeps' trials."""
    return sorted([*project.RUNS.glob("*/"), *project.SWEEPS.glob("*/trials/*/")])


def _view() -> Path:
    """A folder that shows runs and sweeps as one tree, in which TensorBoard also finds new ones."""
    view = project.PRIVATE / "tensorboard"
    view.mkdir(parents=True, exist_ok=True)
    for folder in (project.RUNS, project.SWEEPS):
        link = view / folder.name
        if not (link.is_symlink() and link.readlink() == folder):
            link.unlink(missing_ok=True)
            link.symlink_to(folder)
    return view


def _launch(folder: Path, port: int) -> None:
    log = project.PRIVATE / "tensorboard.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    script = 'log=$1; shift; exec "$@" > "$log" 2>&1'
    argv = [*TMUX, "new-session", "-d", "-s", SESSION, "bash", "-c", script, "bash", str(log), *command]
    subprocess.run(argv, check=True, capture_output=True)
    deadline = time.monotonic() + DEADLINE_S
    while not _answers(port):
        if not _is_up() or time.monotonic() > deadline:
            last = "\n  ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
            raise LockstepError(f"TensorBoard did not start on port {port} (choose another with -e tensorboard_port=N):\n  {last}")
        time.sleep(0.3)


def _is_up() -> bool:
    return subprocess.run([*TMUX, "has-session", "-t", f"={SESSION}"], capture_output=True, check=False).returncode == 0


def _await_silence(port: int | None) -> None:
    """Wait until the port is free, a moment after the session ends: the next session should reuse it, as a browser may have it open."""
    deadline = time.monotonic() + 10
    while port and _answers(port) and time.monotonic() < deadline:
        time.sleep(0.1)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port(first: int, count: int) -> int:
    for port in range(first, first + count):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    taken = f"port {first} is taken" if count == 1 else f"no free port from {first} to {first + count - 1}"
    raise LockstepError(f"{taken}; name another with -e tensorboard_port=N")


def _where(port: int) -> str:
    here = f"{getpass.getuser()}@{socket.gethostname()}"
    pairs = [
        ("here", f"http://127.0.0.1:{port}/"),
        ("table of runs", f"http://127.0.0.1:{port}/#hparams"),
        ("from elsewhere", f"ssh -L {port}:127.0.0.1:{port} {here}   and then open http://127.0.0.1:{port}/"),
    ]
    return f"TensorBoard is up\n{text.fields(pairs)}\n\n" + text.next_commands(
        [("stop it", "ansible-playbook tensorboard.yml -e state=absent")]
    )
