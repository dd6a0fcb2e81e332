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

from plugins.filter.cluster import place_digest
from plugins.module_utils.lockstep_tmux import SOCKET
from plugins.shared import control
from trainer.analysis import text
from trainer.errors import ConfigError, LockstepError
from trainer.files import read_json, write_json
from trainer.plan import integer, latest_run

SESSION = f"tensorboard-{place_digest(str(control.ROOT))}"
TMUX = ["tmux", "-L", SOCKET]
RECORD = control.PRIVATE / "tensorboard.json"
DEADLINE_S = 60


class ActionModule(control.ControlAction):
    """`state=present` (default) starts it when it is not up; `state=absent` ends it."""

    def act(self) -> dict[str, Any]:
        """Start, stop, or say that there is nothing to do."""
        options = control.operator_options("tensorboard", self.task_vars)
        state = str(options.get("state", "present"))
        if state not in ("present", "absent"):
            raise ConfigError(f"state={state}: it must be present or absent")
        up = _is_up()
        changed = up != (state == "present")
        if state == "absent":
            return {"changed": changed, "show_last": self._stop(up)}
        return {"changed": changed} if self._task.check_mode else {"changed": changed, "show_last": self._start(up, options)}

    def _stop(self, up: bool) -> str:
        if up and not self._task.check_mode:
            subprocess.run([*TMUX, "kill-session", "-t", f"={SESSION}"], check=True, capture_output=True)
            RECORD.unlink(missing_ok=True)
        return "TensorBoard is stopped" if up else "TensorBoard was not running"

    def _start(self, up: bool, options: dict[str, Any]) -> str:
        asked = options.get("run")
        folder = control.RUNS if asked is None else latest_run(control.RUNS, str(asked))
        if up and RECORD.is_file():
            running = read_json(RECORD)
            if running["folder"] == str(folder):
                return _where(running["port"])
            self._stop(up)
        port = integer("tensorboard_port", options["tensorboard_port"]) if "tensorboard_port" in options else _free_port(6006)
        folder.mkdir(parents=True, exist_ok=True)
        _launch(folder, port)
        write_json(RECORD, {"port": port, "folder": str(folder)})
        return _where(port)


def _launch(folder: Path, port: int) -> None:
    log = control.PRIVATE / "tensorboard.log"
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


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port(first: int) -> int:
    for port in range(first, first + 50):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise LockstepError(f"no free port from {first} to {first + 49}; name one with -e tensorboard_port=N")


def _where(port: int) -> str:
    here = f"{getpass.getuser()}@{socket.gethostname()}"
    pairs = [
        ("here", f"http://127.0.0.1:{port}/"),
        ("from elsewhere", f"ssh -L {port}:127.0.0.1:{port} {here}   and then open http://127.0.0.1:{port}/"),
    ]
    return f"TensorBoard is up\n{text.fields(pairs)}\n\n" + text.next_commands(
        [("stop it", "ansible-playbook tensorboard.yml -e state=absent")]
    )
