"""State of a TCP port of this machine: free, or its holder.

Standard library only, and Python 3.9: Ansible modules run this file in a host's own Python (`plugins/module_utils/lockstep_ports.py`
is a link to it).
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import socket

LISTENS = "0A"
LENGTH = 60
"""Characters shown of a command line."""


def taken(port: int) -> OSError | None:
    """Why a port can't be listened on, on all addresses; None when it is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error
    return None


def holder(port: int) -> str:
    """Who listens on a port: `python3 x.py (pid 7, user pi)`; for another user's process only the user; empty if no one is found."""
    rows = [row for name in ("tcp", "tcp6") for row in _table(name) if row[3] == LISTENS and int(row[1].rpartition(":")[2], 16) == port]
    sockets = {f"socket:[{row[9]}]" for row in rows}
    for path in glob.iglob("/proc/[0-9]*/fd/*") if sockets else []:
        with contextlib.suppress(OSError):
            if os.readlink(path) in sockets:
                pid = path.split("/")[2]
                return f"{_command(pid)} (pid {pid}, user {_user(os.stat(f'/proc/{pid}').st_uid)})"
    return f"a process of user {_user(int(rows[0][7]))}" if rows else ""


def _table(name: str) -> list[list[str]]:
    try:
        with open(f"/proc/net/{name}", encoding="ascii") as stream:
            return [line.split() for line in stream.readlines()[1:]]
    except OSError:
        return []


def _command(pid: str) -> str:
    """A process's command line; any user may have chosen it, so control characters are replaced."""
    with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as stream:
        words = stream.read().rstrip("\0").replace("\0", " ")
    shown = "".join(letter if letter.isprintable() else "?" for letter in words) or "a process"
    return shown if len(shown) <= LENGTH else f"{shown[: LENGTH - 3]}..."


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
