"""The socket of our tmux server, made again where a cleaner of temporary files removed it: its sessions live on, and nobody sees them.

Standard library only, and Python 3.9: Ansible modules run this file in a host's own Python (`plugins/module_utils/lockstep_tmux_socket.py`
is a link to it), and `control/remote/follow_program.py` is sent with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

NAME = "lockstep"
MADE_S, LOOK_S = 2.0, 0.02
"""Seconds in which a server makes its socket, and between two looks."""
SERVER = "tmux: server"


def mend(name: str = NAME) -> bool:
    """Have each of this user's servers of that name make its socket again if it is gone; whether there was one to ask."""
    path = _path(name)
    if os.path.exists(path):
        return False
    alike = [pid for pid in os.listdir("/proc") if pid.isdigit() and _serves(pid, name)]
    # A server's child is like it until it becomes a session's program, and the signal would end it.
    servers = [pid for pid in alike if _parent(pid) not in alike]
    if not servers:
        return False
    # tmux makes the socket, but not its folder.
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    for pid in servers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGUSR1)
    deadline = time.monotonic() + MADE_S
    while not _answers(path) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return True


def _answers(path: str) -> bool:
    """Return whether a server listens; its socket exists a moment earlier."""
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(path)
        except OSError:
            return False
    return True


def _path(name: str) -> str:
    return os.path.join(os.environ.get("TMUX_TMPDIR") or "/tmp", f"tmux-{os.getuid()}", name)  # noqa: S108 - tmux's own place


def _parent(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[1]
    except OSError:
        return ""


def _serves(pid: str, name: str) -> bool:
    """Return whether a process is such a server; a container's server has files of its own."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid() or os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            return False
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            if comm.read().strip() != SERVER:
                return False
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as cmdline:
            words = cmdline.read().split("\0")
    except OSError:
        return False
    return "-L" in words and words[words.index("-L") + 1 :][:1] == [name]
