"""A worker's files, followed as they grow: one program on the host prints the news (`follow_program.py`), over one quiet connection."""

import collections
import contextlib
import json
import os
import re
import shlex
import subprocess
import tempfile
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, cast

from ansible.errors import AnsibleConnectionFailure

from control.remote import modules, worker_files
from trainer.common.clock import CLOCK, Clock
from trainer.common.safe_text import printable
from trainer.host import tmux_socket
from trainer.host.claims import SOCKET

PROGRAM = Path(__file__).with_name("follow_program.py")
BEGINNING = re.compile(r"^from (__future__|trainer\.host\.tmux_socket) import .*\n", re.MULTILINE)
"""Lines of the program that mean nothing inside of a file."""
LOADER = "import sys,zlib;exec(zlib.decompress(sys.stdin.buffer.read({size})))"
EXIT = 64 * 1024
ESCAPED = 6
"""JSON takes at most this many bytes for one of a file."""
CLOCKS = 12
"""Lines whose delays are compared: the smallest is closest to the clocks' difference."""
ENDING_S = 5.0
SSH = 255
"""Exit code of `ssh` where the connection failed."""
ERRORS, LAST_ERRORS = 2**20, 3
"""Most bytes that a program may write to standard error, and the lines of them that a message quotes."""


class HostUnreachable(Exception):
    """The host can't be reached, or gives no valid answer."""


class FollowingFailed(HostUnreachable):
    """The host was reached, and the program that follows a worker there ended before its first line."""


@dataclass(frozen=True)
class Line:
    """A line of `worker_feed.py`, which documents the fields."""

    t: float
    begin: int
    news: str
    more: bool
    touched: float
    alive: bool
    exit: str
    folder: str


CHECKS: dict[Any, worker_files.Check] = {
    float: worker_files.number,
    int: worker_files.count,
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
}
FIELDS = {field.name: CHECKS[field.type] for field in fields(Line)}
_fits = worker_files.holding(FIELDS)


class Feed:
    """The news of one file of a worker."""

    def __init__(self, action: Any, folder: str, session: str, name: str, limit: int, clock: Clock = CLOCK):
        """Follow the file `name` in the worker's folder from its beginning; a line has at most `limit` bytes of it."""
        self._action, self._limit, self._clock = action, limit, clock
        self._followed = {"folder": folder, "session": session, "socket": SOCKET, "name": name, "limit": limit}
        self._offset: int | None = 0
        self._stream: _Stream | None = None
        self._delays: collections.deque[float] = collections.deque(maxlen=CLOCKS)

    @property
    def ahead(self) -> float:
        """Seconds by which the host's clock is ahead of this machine's, less the shortest delay of a line."""
        return max(self._delays, default=0.0)

    def skip(self) -> None:
        """Begin with the file's last `limit` bytes, whose first line may be torn."""
        self._offset = None

    def once(self) -> Line:
        """Current news, from a program that ends at once; HostUnreachable."""
        command, sent = self._program(None)
        begun = self._clock.time()
        try:
            completed = self._action._low_level_execute_command(command, in_data=sent, sudoable=False, executable="/bin/sh")
        except AnsibleConnectionFailure as error:
            raise HostUnreachable(str(error)) from None
        if completed["rc"] != 0:
            raise HostUnreachable(
                printable((completed["stderr"] or completed["stdout"]).strip(), 300) or "its Python ended without an answer"
            )
        answer = str(completed["stdout"]).strip().rpartition("\n")[2]
        return self._line(answer.encode(), (begun + self._clock.time()) / 2)

    def next(self, timeout: float, every: float) -> Line | None:
        """The next line, or None after `timeout` seconds without one.

        Args:
            timeout: seconds.
            every: seconds between two lines of a worker that trains and has news; its end is told at once.

        Raises:
            HostUnreachable: the program ended, or prints something else. The next call starts it again.
        """
        if not _streams(self._action._connection):
            self._clock.sleep(max(timeout, 1.0))
            return self.once()
        try:
            if self._stream is None:
                command, sent = self._program(every)
                longest = ESCAPED * (self._limit + EXIT) + 1000
                self._stream = _Stream(_argv(self._action._connection, command), sent, longest, self._clock)
            written = self._stream.line(timeout)
            return None if written is None else self._line(written, self._clock.time())
        except HostUnreachable:
            self.close()
            raise

    def close(self) -> None:
        """End the program on the host."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _program(self, every: float | None) -> tuple[str, bytes]:
        """The command on the host, and what it reads first."""
        call = f"main(**json.loads({json.dumps(json.dumps({**self._followed, 'offset': self._offset, 'every': every}))}))\n"
        sent = zlib.compress(f"{_source()}\n\n{call}".encode(), 9)
        return f"exec {shlex.quote(modules.python(self._action))} -c {shlex.quote(LOADER.format(size=len(sent)))}", sent

    def _line(self, written: bytes, at: float) -> Line:
        """A line that arrived at that time of this machine."""
        try:
            value = worker_files.parse(written)
        except ValueError:
            value = None
        if not _fits(value) or value.keys() != FIELDS.keys():
            raise HostUnreachable(f"it answers '{printable(written.decode(errors='replace'), 200)}'")
        line = Line(**value)
        self._delays.append(line.t - at)
        self._offset = line.begin + len(line.news.encode("utf-8", "surrogateescape"))
        return line


def _source() -> str:
    """The program with what it imports from this project, as one file."""
    return f"{Path(tmux_socket.__file__).read_text(encoding='utf-8')}\n\n{BEGINNING.sub('', PROGRAM.read_text(encoding='utf-8'))}"


class _Stream:
    """Lines that a program prints until its standard input closes."""

    def __init__(self, argv: list[str] | list[bytes], sent: bytes, longest: int, clock: Clock = CLOCK):
        """Start the program, which reads `sent` first and prints lines of at most `longest` bytes."""
        self._longest, self._buffer, self._clock, self._answered = longest, bytearray(), clock, False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the stream)
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        self._input, self._output = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        # A program that has ended already says why in `line`.
        with contextlib.suppress(BrokenPipeError):
            self._input.write(sent)
            self._input.flush()

    def line(self, timeout: float) -> bytes | None:
        """The next line, or None after `timeout` seconds without one; HostUnreachable."""
        deadline, searched = self._clock.monotonic() + timeout, 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            # Measured before the output is read: a line that was written before the errors counts first.
            flooded = not self._answered and os.fstat(self._errors.fileno()).st_size > ERRORS
            if searched > self._longest:
                raise HostUnreachable("it answers without an end")
            if not self._clock.select([self._output], 0.0 if flooded else max(0.0, deadline - self._clock.monotonic())):
                if flooded:
                    raise HostUnreachable("it answers without an end")
                return None
            part = os.read(self._output.fileno(), 2**20)
            if not part:
                raise self._ended()
            self._buffer += part
        line, self._answered = bytes(self._buffer[:end]), True
        del self._buffer[: end + 1]
        return line

    def close(self) -> None:
        """End the program by closing its input."""
        for stream in (self._input, self._output, self._errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ended(self) -> HostUnreachable:
        """Why the program ended: in SSH's words, if it was the connection."""
        try:
            code: int | None = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            code = None
        self._errors.seek(max(0, os.fstat(self._errors.fileno()).st_size - 2000))
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        if code == SSH and lines:
            return HostUnreachable(printable(lines[-1], 300))
        status = "(none yet)" if code is None else code
        quoted = f": {printable(' / '.join(lines[-LAST_ERRORS:]), 300)}" if lines else ""
        failed = FollowingFailed if code and code != SSH and not self._answered else HostUnreachable
        return failed(f"what reads the worker's files there ended with exit code {status}{quoted}")


def _streams(connection: Any) -> bool:
    """Return whether a program's output can be read over this connection while the program runs."""
    return connection.transport == "local" or (connection.transport == "ssh" and not connection.get_option("password"))


def _argv(connection: Any, command: str) -> list[str] | list[bytes]:
    shell = ["/bin/sh", "-c", command]
    if connection.transport == "local":
        return shell
    # Ansible's connections return output only when a command has ended, so its SSH command line is run here.
    connection.host = connection.get_option("host")
    argv: list[bytes] = connection._build_command(connection.get_option("ssh_executable"), "ssh", connection.host, shlex.join(shell))
    return argv
