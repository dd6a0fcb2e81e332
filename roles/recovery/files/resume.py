"""Start the sessions of supervised workers again after a restart of this host: `resume.py WORKER_ROOT SHARED_FOLDER`.

The unit lockstep-resume runs it at boot as the user who trains, never as root. What it reads was written by that user, so a file that
others could have written, or that asks for anything but a supervisor's session, starts nothing. Standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import time

FILE, SCRIPT = "supervisor.json", "run_worker.sh"
ENDED = ("stop", "exit.json")
"""Beside a supervisor's file: somebody asked for the worker's end, or it has ended."""
LARGEST = 2**16
"""Bytes of a supervisor's file."""
SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9+_-]{0,63}-w[0-9]{1,5}(-[0-9a-f]{6})?")
TMUX = ["tmux", "-L", "lockstep"]
SHARED_S, AGAIN_S = 600.0, 1.0
"""Seconds that the shared folder may take to be mounted, and between two looks."""


class Refused(Exception):
    """Why a file starts nothing."""


def main(root: str, shared: str, wait: float = SHARED_S) -> int:
    """Start what is to go on; the exit code is 1 if the shared folder does not come."""
    root = str(pathlib.PurePath(root))
    if os.geteuid() == 0:
        print("error: it runs as the user who trains, never as root", file=sys.stderr)
        return 1
    folders = [folder for folder in supervised(root) if not any(os.path.lexists(os.path.join(folder, name)) for name in ENDED)]
    if not folders:
        return 0
    # Every run has put its code there.
    if not awaited(os.path.join(shared, "code"), wait):
        print(f"error: {shared} is not there after {wait:.0f} s; nothing is started", file=sys.stderr)
        return 1
    for folder in folders:
        try:
            print(f"{folder}: {start(command(root, folder))}")
        except (Refused, OSError) as error:
            print(f"{folder}: not started: {error}", file=sys.stderr)
    # systemd ends what a failed unit has started.
    return 0


def supervised(root: str) -> list[str]:
    """Folders of workers below `root` that have a supervisor's file."""
    folders: list[str] = []
    runs = os.path.join(root, "runs")
    for run in listed(runs):
        workers = os.path.join(runs, run, "workers")
        folders += [os.path.join(workers, host) for host in listed(workers) if os.path.lexists(os.path.join(workers, host, FILE))]
    return folders


def listed(folder: str) -> list[str]:
    """Names in a folder, sorted; none if there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def awaited(folder: str, wait: float) -> bool:
    """Wait up to `wait` seconds for a folder; return whether it exists."""
    deadline = time.monotonic() + wait
    while not os.path.isdir(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(AGAIN_S)
    return True


def command(root: str, folder: str) -> list[str]:
    """The command that starts the session of the supervisor in a folder; Refused if it is another one, or not surely this user's."""
    if os.path.realpath(folder) != os.path.join(os.path.realpath(root), os.path.relpath(folder, root)):
        raise Refused("a link leads to it")
    closed(os.stat(folder), folder)
    os.close(opened(os.path.join(folder, SCRIPT)))
    with open(opened(os.path.join(folder, FILE)), encoding="utf-8") as stream:
        text = stream.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise Refused(f"{FILE} is larger than {LARGEST:,} bytes")
    try:
        words = json.loads(text)["session"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Refused(f"{FILE} names no session") from None
    name = words[len(TMUX) + 3] if isinstance(words, list) and len(words) > len(TMUX) + 3 else None
    if not isinstance(name, str) or not SESSION.fullmatch(name) or words != session(name, folder):
        raise Refused(f"{FILE} asks for {str(words)[:200]!r}; expected {' '.join(session('NAME', folder))}")
    return words


def session(name: str, folder: str) -> list[str]:
    """The only command that is ever run."""
    return [*TMUX, "new-session", "-d", "-s", name, "-c", folder, "bash", SCRIPT]


def opened(path: str) -> int:
    """Descriptor of a regular file of this user's that nobody else may write."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{path} is no file")
        closed(status, path)
    except Refused:
        os.close(handle)
        raise
    return handle


def closed(status: os.stat_result, path: str) -> None:
    """Refuse what another user owns or may write."""
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused(f"{path} belongs to another user, or others may write it")


def start(words: list[str]) -> str:
    """Start a session, unless it is there; return what became of it."""
    name = words[words.index("-s") + 1]
    if subprocess.run([*TMUX, "has-session", "-t", f"={name}"], capture_output=True, check=False).returncode == 0:
        return f"session {name} runs"
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"tmux could not start session {name}: {done.stderr.strip()}")
    return f"session {name} is started"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
