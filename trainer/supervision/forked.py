"""The client of a `trainer.host.fork_server`: a supervisor's workers as processes that others fork."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.common.errors import ClusterError
from trainer.host import fork_server

ANSWER_S = 30.0
"""Seconds in which a server must fork: it may still have to import TensorFlow and the trainer."""


class Forked:
    """A process that a server forked, with what a supervisor needs of `subprocess.Popen`."""

    def __init__(self, server: socket.socket, pid: int):
        """Take the connection to the server, which sends its exit code."""
        self._server, self.pid = server, pid
        self.returncode: int | None = None
        """As of `subprocess.Popen`; None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None and not select.select([self._server], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
        if self.returncode is None:
            # A server that ends without a word takes its processes with it.
            self.returncode = int(_heard(self._server).get("code", -signal.SIGKILL))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None and not select.select([self._server], [], [], 0.0)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """A connection to a server."""

    def __init__(self, connection: socket.socket, modules: Sequence[str], process: "subprocess.Popen[bytes] | None" = None):
        """Take it, what the server imports before it forks, and the server's process if it is this process' own."""
        self._connection, self._modules, self._process = connection, list(modules), process

    @classmethod
    def of_host(cls, key: str | None, modules: Sequence[str]) -> "ForkServer | None":
        """The server that a launch has started on this host; None if there is none. `modules`: those that it imports before it forks."""
        if not key:
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(fork_server.socket_path(key))
        except OSError:
            connection.close()
            return None
        return cls(connection, modules)

    @classmethod
    def beside(cls, command: Sequence[str], modules: Sequence[str], environment: Mapping[str, str]) -> "ForkServer":
        """A server of this process' own, which ends with it. Call this from the main thread: the server ends with the calling thread.

        `command` runs `trainer.host.fork_server`.
        """
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [*command, str(its.fileno()), str(os.getpid()), *modules]
        process = subprocess.Popen(words, env=dict(environment), pass_fds=[its.fileno()], cwd="/")
        its.close()
        return cls(own, modules, process)

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Forked:
        """A process that runs `python -m trainer ARGUMENTS` in this environment, with this process' folder and streams.

        Raises:
            ClusterError: the server is gone, does not answer, or would fork what differs from a process that is started anew.
        """
        order = {"module": "trainer", "arguments": list(arguments), "environment": dict(environment), "umask": _umask()}
        order["modules"] = self._modules
        try:
            order["folder"] = os.getcwd()
            socket.send_fds(self._connection, [json.dumps(order).encode()], [0, 1, 2], socket.MSG_DONTWAIT)
        except OSError as error:
            raise ClusterError(f"the process that was to fork it is gone ({error})") from None
        if not select.select([self._connection], [], [], ANSWER_S)[0]:
            raise ClusterError(f"the process that was to fork it did not answer for {ANSWER_S:.0f} s")
        answer = _heard(self._connection)
        if "pid" not in answer:
            raise ClusterError(answer.get("refused", "the process that was to fork it ended"))
        return Forked(self._connection, int(answer["pid"]))

    def end(self) -> None:
        """Close the connection, which also ends what was forked."""
        self._connection.close()
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _heard(connection: socket.socket) -> dict[str, Any]:
    """The server's next message; empty if it is gone."""
    try:
        message = connection.recv(fork_server.LARGEST)
    except OSError:
        message = b""
    heard: dict[str, Any] = json.loads(message) if message else {}
    return heard
