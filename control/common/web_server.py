"""A server for browsers and programs on the control node, in a tmux session of its own: started once, found again, ended by name."""

import contextlib
import errno
import getpass
import ipaddress
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.common import project
from control.common.operator_variables import integer
from trainer.common.errors import ConfigError, LockstepError
from trainer.common.files import read_json, write_json
from trainer.host import claims, tmux_socket
from trainer.host.claims import TMUX, path_digest
from trainer.network.member import endpoint, family

DEADLINE_S, SILENT_S = 60, 15
LOOPBACK = {4: "127.0.0.1", 6: "::1"}
"""By version of IP."""
LAST_PORT = 65535
PORTS = 50
"""That are tried from the first one, if the user names none."""


@dataclass(frozen=True)
class WebServer:
    """One kind of server; a project has one of each."""

    title: str
    name: str
    """Name of the server's session, record and log."""
    port: int
    """The first that is tried."""
    variable: str
    """With which the user names a port."""
    ready: str
    """Path that it answers with 200 once it is ready."""

    @property
    def session(self) -> str:
        """Name of the tmux session."""
        return f"{self.name}-{path_digest(str(project.ROOT))}"

    @property
    def log(self) -> Path:
        """File of the server's output."""
        return project.PRIVATE / f"{self.name}.log"

    @property
    def _record(self) -> Path:
        return project.PRIVATE / f"{self.name}.json"

    def is_up(self) -> bool:
        """Return whether the server's session exists."""
        tmux_socket.mend()
        return subprocess.run([*TMUX, "has-session", "-t", f"={self.session}"], capture_output=True, check=False).returncode == 0

    def started_with(self) -> dict[str, Any]:
        """Arguments and `port` of the running server; empty if the server is down."""
        return dict(read_json(self._record)) if self.is_up() and self._record.is_file() else {}

    def stop(self) -> None:
        """End it: with SIGTERM, so that it may answer what it has begun to; what is left then is killed. Its port is free afterwards."""
        pane = subprocess.run([*TMUX, "list-panes", "-s", "-t", f"={self.session}", "-F", "#{pane_pid}"], capture_output=True, check=False)
        for pid in pane.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)
        deadline = time.monotonic() + SILENT_S
        while self.is_up() and time.monotonic() < deadline:
            time.sleep(0.1)
        subprocess.run([*TMUX, "kill-session", "-t", f"={self.session}"], check=False, capture_output=True)
        self._record.unlink(missing_ok=True)

    def start(
        self, wanted: dict[str, Any], port: int | None, command: Callable[[int], Sequence[str]], address: str = "127.0.0.1"
    ) -> tuple[int, bool]:
        """Start it unless it runs with the same; its port, and whether anything changed.

        Args:
            wanted: with what it runs.
            port: asked for by the user; None: the one that it had, or the first free one.
            command: argv for a port.
            address: on which it listens.

        Raises:
            LockstepError: it does not start, or there is no free port.
        """
        before = self.started_with()
        whole = {"port": port or before.get("port"), **wanted}
        if whole == before:
            return int(before["port"]), False
        self.stop()
        chosen = self._free_port(address, port, 1) if port else self._free_port(address, before.get("port", self.port), PORTS)
        try:
            self._launch(address, chosen, command(chosen))
        except BaseException:
            self.stop()
            raise
        write_json(self._record, {**whole, "port": chosen})
        return chosen, True

    def _launch(self, address: str, port: int, command: Sequence[str]) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        script = 'log=$1; shift; exec "$@" > "$log" 2>&1'
        argv = ["bash", "-c", script, "bash", str(self.log), *command]
        if error := claims.start_session(claims.session_command(self.session, str(project.ROOT), argv)):
            raise LockstepError(f"tmux could not start session {self.session}: {error}")
        deadline = time.monotonic() + DEADLINE_S
        while not self._answers(address, port):
            if not self.is_up() or time.monotonic() > deadline:
                last = "\n  ".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
                raise LockstepError(f"{self.title} did not start on port {port} (choose another with -e {self.variable}=N):\n  {last}")
            time.sleep(0.3)

    def _answers(self, address: str, port: int) -> bool:
        return get(address, port, self.ready) is not None

    def _free_port(self, address: str, first: int, count: int) -> int:
        for port in range(first, min(first + count, LAST_PORT + 1)):
            try:
                with socket.create_server((address, port), family=family(address)):
                    return port
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise LockstepError(f"{address} is not an address of this machine; 127.0.0.1 always is") from None
        taken = f"port {first} is taken" if count == 1 else f"no free port from {first} to {first + count - 1}"
        raise LockstepError(f"{taken} at {address}; name another with -e {self.variable}=N")

    def port_of(self, options: Mapping[str, Any]) -> int | None:
        """The port that the user names, if any; ConfigError if it is none."""
        port = integer(self.variable, options[self.variable]) if self.variable in options else None
        if port and port > LAST_PORT:
            raise ConfigError(f"{self.variable}={port}: expected a port, at most {LAST_PORT}")
        return port


def get(address: str, port: int, path: str) -> bytes | None:
    """The body that a server of this machine answers with 200; None if it does not."""
    try:
        # Not through a proxy that the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{at(address, port)}{path}", timeout=2) as answer:
            body: bytes = answer.read()
            return body if answer.status == 200 else None
    except (urllib.error.URLError, OSError):
        return None


def at(address: str, port: int) -> str:
    """Where a server that listens on an address is reached from this machine, as in a URL."""
    ip = ipaddress.ip_address(address)
    return endpoint(LOOPBACK[ip.version] if ip.is_unspecified else address, port)


def tunnel(address: str, port: int) -> str:
    """The command by which another machine reaches a server on a loopback address of this one."""
    return f"ssh -L {port}:{at(address, port)} {getpass.getuser()}@{socket.gethostname()}"
