"""Claims of a host by runs' workers, and the queue for the host: small files below its `worker_root`.

`locks/PORT.json` is the claim of a worker that was started, `queue/TICKET.json` that of one that waits for its turn. A claim is valid while
its tmux session exists. Tickets sort by the time at which they were drawn.

Standard library only, and Python 3.9: Ansible modules run this file in a host's own Python (`plugins/module_utils/lockstep_claims.py`
is a link to it).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

SOCKET = "lockstep"
TMUX = ("tmux", "-L", SOCKET)
"""The command of our own tmux server."""
ENDING = ("server exited", "lost server")
"""Errors of tmux when its server, whose last session has ended, ends before starting another session."""
STARTS, PAUSE_S = 50, 0.1
LOCK = ".lock"
CLAIMS, QUEUE = "locks", "queue"
"""Folders below `worker_root`."""
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A name that can neither leave its folder nor reach a shell."""
SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9+_-]{0,127}")
TICKET = re.compile(r"[0-9]{13}-[0-9a-f]{8,64}")
"""Milliseconds since 1970, and what tells two of the same moment apart."""
NAME = re.compile(r"([0-9]{1,5}|[0-9]{13}-[0-9a-f]{8,64}-[0-9]{1,5})\.json")
"""Name of a claim's file: a port, or a ticket and a port."""
LARGEST = 4096
"""Bytes of a claim."""
RETURN_S = 660.0
"""Seconds within which a worker that a restart of its host has ended may return: its shared folder may take ten minutes to be mounted."""
SUPERVISED, MARK, EXIT = "supervisor.json", "stop", "exit.json"
"""In a worker's folder: while it is started again after a fault; once somebody has asked for its end; once it has ended."""


class Locked(Exception):
    """Another process keeps the claims of a host locked; says which, as far as it is known."""


@contextlib.contextmanager
def locked(root: str, patience: float | None = None) -> Iterator[None]:
    """Keep others on this host from changing claims below `root`; the kernel releases the lock when a process dies.

    Raises:
        Locked: another process kept it for `patience` seconds; None waits for ever.
    """
    with open(os.path.join(root, LOCK), "ab+", buffering=0) as stream:
        if patience is None:
            fcntl.flock(stream, fcntl.LOCK_EX)
        else:
            _lock_within(patience, stream)
        _sign(stream, b"process %d" % os.getpid())
        try:
            yield
        finally:
            # The system reuses process ids: no later message may name this one.
            _sign(stream, b"")


def _sign(stream: IO[bytes], holder: bytes) -> None:
    # On a full disk, too, runs are stopped.
    with contextlib.suppress(OSError):
        stream.truncate(0)
        stream.write(holder)


def _lock_within(seconds: float, stream: IO[bytes]) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() >= deadline:
            stream.seek(0)
            raise Locked(stream.read(LARGEST).decode("ascii", "replace") or "another process")
        time.sleep(PAUSE_S)


def place(root: str, ticket: str, port: int) -> str:
    """Path of the claim of a worker that waits for its turn."""
    return os.path.join(root, QUEUE, f"{ticket}-{port}.json")


def ticket_of(path: str) -> str:
    """The ticket of a worker that waits."""
    return os.path.basename(path).rpartition("-")[0]


def read_claim(path: str) -> dict[str, Any] | None:
    """A claim, or None.

    Its session is ended together with its run, and its run is named to other users, so what another user put there, or what no module
    writes, is no claim.
    """
    try:
        claim = json.loads(_own(path) or "")
    except ValueError:
        return None
    if not isinstance(claim, dict) or not all(isinstance(claim.get(name, ""), str) for name in ("run", "session", "launch", "folder")):
        return None
    run, session = claim.get("run", ""), claim.get("session", "")
    ours = RUN_NAME.fullmatch(run) and SESSION.fullmatch(session) and session.startswith(session_name(run))
    return claim if ours else None


def listed(root: str, folder: str) -> list[tuple[str, dict[str, Any]]]:
    """Paths and contents of the claims in a folder below `root`, by name: those of the queue by age."""
    try:
        names = sorted(name for name in os.listdir(os.path.join(root, folder)) if NAME.fullmatch(name))
    except OSError:
        return []
    read_all = [(path, read_claim(path)) for path in (os.path.join(root, folder, name) for name in names)]
    return [(path, claim) for path, claim in read_all if claim is not None]


def returns(claim: dict[str, Any]) -> bool:
    """Return whether a claim's worker, whose session has ended, is started again after a restart of its host."""
    folder = claim.get("folder", "")
    there = [name for name in (SUPERVISED, MARK, EXIT) if os.path.lexists(os.path.join(folder, name))]
    return os.path.isabs(folder) and there == [SUPERVISED]


def session_name(run: str, rank: int | str = "", root: str = "") -> str:
    """Name of a worker's tmux session.

    tmux does not allow `.`; `+` can't occur in a run's name. A digest of the worker's directory separates two projects of one user.
    """
    return f"{run.replace('.', '+')}-w{rank}" + (f"-{path_digest(root)}" if root else "")


def path_digest(path: str) -> str:
    """Six hex digits of a directory's name, to separate two projects of one user."""
    return hashlib.sha256(path.encode()).hexdigest()[:6]


def sessions() -> set[str]:
    """Names of the tmux sessions that exist."""
    try:
        done = subprocess.run([*TMUX, "list-sessions", "-F", "#{session_name}"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return set(done.stdout.split())


def session_command(name: str, folder: str, argv: Sequence[str] = ("bash", "run_worker.sh")) -> list[str]:
    """The command that starts a session, which ends with `argv`; without it a worker's, also once more."""
    return [*TMUX, "new-session", "-d", "-s", name, "-c", folder, *argv]


def _run(words: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def start_session(words: Sequence[str], run: Callable[[list[str]], tuple[int, str, str]] = _run) -> str:
    """Run the command that starts a session, again where it met a server that was ending; return what tmux says if it fails.

    `run` returns a command's exit code, output and error output.
    """
    for _ in range(STARTS):
        code, _, error = run(list(words))
        if code == 0 or not error.startswith(ENDING):
            break
        time.sleep(PAUSE_S)
    return error.strip() or f"exit code {code}" if code else ""


def _own(path: str) -> str:
    """The text of a small regular file that this user wrote; empty for any other. Never waits for a pipe, follows no link."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        status = os.fstat(handle)
        mine = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_size <= LARGEST
        return os.read(handle, LARGEST).decode("utf-8", "replace") if mine else ""
    finally:
        os.close(handle)
