"""tmux sessions and their processes. Every command names one session exactly."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import Any

from ansible.module_utils import lockstep_claims as claims

GONE_S = 15.0


def exists(module: Any, name: str) -> bool:
    """Return whether the session exists, which means that its command still runs."""
    return _tmux(module, "has-session", "-t", f"={name}")[0] == 0


def processes(module: Any, name: str) -> list[int]:
    """Process ids in the session: the pane's first, then its descendants."""
    # Without the colon, tmux falls back to a window or another session if this session is gone.
    code, out, _ = _tmux(module, "list-panes", "-s", "-t", f"={name}:", "-F", "#{pane_pid}")
    return _with_descendants([int(pid) for pid in out.split()]) if code == 0 else []


def mark(path: str) -> None:
    """Tell the supervisor in a folder, if there is one, that its end is wanted: without this file, its host goes down."""
    if path and os.path.exists(os.path.join(os.path.dirname(path), claims.SUPERVISED)):
        with open(path, "w", encoding="utf-8"):
            pass


def _folder(module: Any, name: str) -> str:
    code, out, _ = _tmux(module, "list-panes", "-s", "-t", f"={name}:", "-F", "#{session_path}")
    return out.splitlines()[0] if code == 0 and out else ""


def _tmux(module: Any, *argv: str) -> tuple[int, str, str]:
    tmux = module.get_bin_path("tmux")
    if tmux is None:
        module.fail_json(msg="tmux is missing on this host; install it: sudo apt-get install tmux")
    code, out, error = module.run_command([tmux, "-L", claims.SOCKET, *argv])
    return code, out, error


def _with_descendants(roots: list[int]) -> list[int]:
    children: dict[int | None, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            children.setdefault(_parent(entry), []).append(int(entry))
    pids = list(roots)
    for pid in pids:
        pids.extend(children.get(pid, []))
    return pids


def _parent(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return int(stream.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes that may already be gone."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def end(module: Any, name: str, grace: float) -> str:
    """End a session: SIGTERM to its worker, wait, then SIGKILL to the rest of the session.

    Returns:
        "ended" (by itself in time), "killed", or "absent" (there was none).
    """
    if not exists(module, name):
        return "absent"
    mark(os.path.join(_folder(module, name), claims.MARK))
    send(processes(module, name)[1:], signal.SIGTERM)
    deadline = time.monotonic() + grace
    while exists(module, name) and time.monotonic() < deadline:
        time.sleep(0.2)
    left = processes(module, name)
    if not left and not exists(module, name):
        return "ended"
    send(left, signal.SIGCONT)
    send(reversed(left), signal.SIGKILL)
    _tmux(module, "kill-session", "-t", f"={name}")
    # A killed process holds its port until the kernel has taken its memory apart.
    deadline = time.monotonic() + GONE_S
    while any(_lives(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    return "killed"


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False
