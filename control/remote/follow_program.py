"""Program on a host: prints how a worker changes, one JSON object per line, until its standard input closes. Standard library only.

One process follows a worker for as long as it is watched. It starts no other programs, except once to find the worker's session, since
whatever it does delays the training on its host. Each line has

- `t`: this host's clock, in seconds since 1970;
- `begin`, `news`: where the unread part of the followed file begins, and that part up to its last whole line;
- `more`: whether further lines are waiting;
- `touched`: when the file last changed, 0 without a file;
- `alive`: whether the worker's session exists;
- `exit`: the contents of exit.json, empty without one;
- `folder`: `removed` or `read-only` if the worker's folder is, else empty.

Links, pipes and devices count as missing. It is sent behind `trainer/host/tmux_socket.py`, as one file.
"""

from __future__ import annotations

import json
import os
import select
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from trainer.host.tmux_socket import mend

PAUSE_S = 0.25
"""Between two looks at the worker's files, which cost microseconds."""
BEAT_S = 5.0
"""A line is sent at least this often."""
EXIT = 64 * 1024
REMOVED, READ_ONLY = "removed", "read-only"
STEPS = b'"kind": "steps"'
"""From the first such record on, news are sent at most once per `every` seconds."""


class Feed:
    """One worker, as its host sees it."""

    def __init__(self, folder: str, session: str, socket: str, name: str, offset: int | None, limit: int):
        """Follow the file `name` in the worker's folder from `offset` on (None: its last `limit` bytes), at most `limit` bytes at once."""
        self.folder, self.session, self.socket, self.name = folder, session, socket, name
        self.offset, self.limit = offset, limit
        self.training = False
        self._process: tuple[int, str] | None = None
        self._file = 0
        """The inode of the followed file."""

    def look(self) -> dict[str, Any]:
        """The next line; what it holds is not sent again."""
        # In this order: a worker that has ended wrote its exit.json before, and its last records before that.
        alive, ended = self.alive(), self.ended()
        begin, news, more, touched = self._news(alive)
        return {
            "t": time.time(),
            "begin": begin,
            "news": _text(news),
            "more": more,
            "touched": touched,
            "alive": alive,
            "exit": _text(ended),
            "folder": self._fault(),
        }

    def state(self) -> tuple[Any, ...]:
        """State whose change is worth a line."""
        return self.alive(), self._status("exit.json"), self._status(self.name)

    def alive(self) -> bool:
        """Return whether the first process of the worker's session still runs."""
        if self._process is None or _process(self._process[0]) != self._process:
            self._process = self._session()
        return self._process is not None

    def ended(self) -> bytes:
        """The contents of exit.json."""
        return self._read("exit.json", 0, EXIT)[0]

    def _session(self) -> tuple[int, str] | None:
        # Without the colon, tmux falls back to a window or another session if this session is gone.
        mend(self.socket)
        command = ["tmux", "-L", self.socket, "list-panes", "-s", "-t", f"={self.session}:", "-F", "#{pane_pid}"]
        try:
            pids = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout.split()
        except OSError:
            return None
        return _process(int(pids[0])) if pids else None

    def _news(self, alive: bool) -> tuple[int, bytes, bool, float]:
        status = self._status(self.name)
        if status is None:
            # Whatever appears later is new.
            self.offset = self.offset or 0
            return self.offset, b"", False, 0.0
        size, touched, file = status
        if self.offset is None:
            self.offset = max(0, size - self.limit)
        elif size < self.offset or (self._file and file != self._file):
            # Another launch replaced the file, or somebody removed it.
            self.offset = 0
        self._file = file
        begin = self.offset
        data, touched = self._read(self.name, begin, self.limit)
        more = len(data) >= self.limit
        whole = data[: data.rfind(b"\n") + 1]
        if (more and not whole) or not (alive or more):
            whole = data
        self.offset = begin + len(whole)
        self.training = self.training or STEPS in whole
        return begin, whole, more, touched

    def _fault(self) -> str:
        """Reason why the worker can't write its files, else empty."""
        try:
            return READ_ONLY if os.statvfs(self.folder).f_flag & os.ST_RDONLY else ""
        except FileNotFoundError:
            return REMOVED
        except OSError:
            return ""

    def _status(self, name: str) -> tuple[int, float, int] | None:
        """Size, time of the last change and inode of a file; None if there is none."""
        try:
            status = os.lstat(os.path.join(self.folder, name))
        except OSError:
            return None
        return (status.st_size, status.st_mtime, status.st_ino) if stat.S_ISREG(status.st_mode) else None

    def _read(self, name: str, begin: int, limit: int) -> tuple[bytes, float]:
        """Part of a file, and when it last changed."""
        try:
            handle = os.open(os.path.join(self.folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return b"", 0.0
        try:
            status = os.fstat(handle)
            return (os.pread(handle, limit, begin), status.st_mtime) if stat.S_ISREG(status.st_mode) else (b"", 0.0)
        finally:
            os.close(handle)


def _process(pid: int) -> tuple[int, str] | None:
    """A running process: its number and when it started, which tells it from a later one of the same number."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (pid, fields[19])


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _closes(seconds: float) -> bool:
    """Return whether standard input closes within these seconds."""
    return bool(select.select([0], [], [], seconds)[0]) and not os.read(0, 1)


def follow(feed: Feed, every: float, left: Callable[[float], bool] = _closes, clock: Callable[[], float] = time.monotonic) -> None:
    """Print lines until `left`, which waits for the seconds that it is given."""
    sent, before, more = -BEAT_S, None, False
    while True:
        state, now = feed.state(), clock()
        ends = before is not None and state[:2] != before[:2]
        due = now - sent >= (every if feed.training else 0.0)
        if more or ends or (state != before and due) or now - sent >= BEAT_S:
            line = feed.look()
            print(json.dumps(line), flush=True)
            sent, before, more = now, state, line["more"]
        if left(0.0 if more else PAUSE_S):
            return


def main(every: float | None, **followed: Any) -> None:
    """Print lines, or a single one if `every` is None."""
    feed = Feed(**followed)
    if every is None:
        print(json.dumps(feed.look()), flush=True)
        return
    try:
        follow(feed, every)
    except (BrokenPipeError, KeyboardInterrupt):
        sys.stderr.close()
