"""A server for browsers and programs on the control node, in a tmux session of its own: started once, found again, ended by name."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control import project
from control.remote.tmux import SOCKET
from control.runs.cluster import path_digest
from trainer.errors import LockstepError
from trainer.files import read_json, write_json

TMUX = ["tmux", "-L", SOCKET]
DEADLINE_S, SILENT_S = 60, 15
PORTS = 50
"""That are tried from the first one, if the user names none."""


@dataclass(frozen=True)
class WebServer:
    """One kind of server; a project has one of each."""

    title: str
    name: str
    """Of its session, its record and its log."""
    port: int
    """The first that is tried."""
    variable: str
    """With which the user names a port."""
    ready: str
    """Path that it answers with 200 once it is ready."""

    @property
    def session(self) -> str:
        """Of tmux."""
        return f"{self.name}-{path_digest(str(project.ROOT))}"

    @property
    def log(self) -> Path:
        """What it prints."""
        return project.PRIVATE / f"{self.name}.log"

    @property
    def _record(self) -> Path:
        return project.PRIVATE / f"{self.name}.json"

    def is_up(self) -> bool:
        """Whether its session exists."""
        return subprocess.run([*TMUX, "has-session", "-t", f"={self.session}"], capture_output=True, check=False).returncode == 0

    def started_with(self) -> dict[str, Any]:
        """What it was started with, and its `port`; empty if it is not up."""
        return dict(read_json(self._record)) if self.is_up() and self._record.is_file() else {}

    def stop(self) -> None:
        """End it, and wait until its port is free: the next one should reuse it, as a browser may have it open."""
        if not self.is_up():
            return
        port = self.started_with().get("port")
        subprocess.run([*TMUX, "kill-session", "-t", f"={self.session}"], check=True, capture_output=True)
        deadline = time.monotonic() + SILENT_S
        while port and self._answers(port) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._record.unlink(missing_ok=True)

    def start(self, wanted: dict[str, Any], port: int | None, command: Callable[[int], Sequence[str]]) -> tuple[int, bool]:
        """Start it unless it runs with the same; its port, and whether anything changed.

        Args:
            wanted: with what it runs.
            port: asked for by the user; None: the one that it had, or the first free one.
            command: argv for a port.

        Raises:
            LockstepError: it does not start, or there is no free port.
        """
        before = self.started_with()
        whole = {"port": port or before.get("port"), **wanted}
        if whole == before:
            return int(before["port"]), False
        self.stop()
        chosen = self._free_port(port, 1) if port else self._free_port(before.get("port", self.port), PORTS)
        self._launch(chosen, command(chosen))
        write_json(self._record, {**whole, "port": chosen})
        return chosen, True

    def _launch(self, port: int, command: Sequence[str]) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        script = 'log=$1; shift; exec "$@" > "$log" 2>&1'
        argv = [*TMUX, "new-session", "-d", "-s", self.session, "bash", "-c", script, "bash", str(self.log), *command]
        subprocess.run(argv, check=True, capture_output=True, cwd=project.ROOT)
        deadline = time.monotonic() + DEADLINE_S
        while not self._answers(port):
            if not self.is_up() or time.monotonic() > deadline:
                last = "\n  ".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
                raise LockstepError(f"{self.title} did not start on port {port} (choose another with -e {self.variable}=N):\n  {last}")
            time.sleep(0.3)

    def _answers(self, port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{self.ready}", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _free_port(self, first: int, count: int) -> int:
        for port in range(first, first + count):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    return port
        taken = f"port {first} is taken" if count == 1 else f"no free port from {first} to {first + count - 1}"
        raise LockstepError(f"{taken}; name another with -e {self.variable}=N")
