"""tmux sessions and their processes. Every command names one session exactly."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import Any

from ansible.module_utils import lockstep_claims as claims

GONE_S = 15.0


def mark(path: str) -> None:
    """Tell the supervisor in a folder, if there is one, that its end is wanted: without this file, its host goes down."""
    if path and os.path.exists(os.path.join(os.path.dirname(path), claims.SUPERVISED)):
        with open(path, "w", encoding="utf-8"):
            pass


class Session:
    """A session of our tmux server, by its name."""

    def __init__(self, module: Any, name: str):
        self.module, self.name = module, name

    def exists(self) -> bool:
        """Return whether the session exists, which means that its command still runs."""
        return self._tmux("has-session", "-t", f"={self.name}")[0] == 0

    def end(self, grace: float) -> str:
        """End the session: SIGTERM to its worker, wait, then SIGKILL to the rest of the session.

        Returns:
            "ended" (by itself in time), "killed", or "absent" (there was none).
        """
        if not self.exists():
            return "absent"
        folders = self._panes("#{session_path}")
        mark(os.path.join(folders[0] if folders else "", claims.MARK))
        _send(self._processes()[1:], signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self.exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        left = self._processes()
        if not left and not self.exists():
            return "ended"
        _send(left, signal.SIGCONT)
        _send(reversed(left), signal.SIGKILL)
        self._tmux("kill-session", "-t", f"={self.name}")
        # A killed process holds its port until the kernel has taken its memory apart.
        deadline = time.monotonic() + GONE_S
        while any(_state(pid)[:1] not in ([], ["Z"], ["X"]) for pid in left) and time.monotonic() < deadline:
            time.sleep(0.05)
        return "killed"

    def _processes(self) -> list[int]:
        """Process ids in the session: the pane's first, then its descendants."""
        pids = [int(pid) for pid in self._panes("#{pane_pid}")]
        children: dict[str, list[int]] = {}
        for entry in filter(str.isdigit, os.listdir("/proc") if pids else []):
            children.setdefault((_state(entry)[1:2] or [""])[0], []).append(int(entry))
        for pid in pids:
            pids.extend(children.get(str(pid), []))
        return pids

    def _panes(self, form: str) -> list[str]:
        # Without the colon, tmux falls back to a window or another session if this session is gone.
        code, out, _ = self._tmux("list-panes", "-s", "-t", f"={self.name}:", "-F", form)
        return out.splitlines() if code == 0 else []

    def _tmux(self, *argv: str) -> tuple[int, str, str]:
        tmux = self.module.get_bin_path("tmux")
        if tmux is None:
            self.module.fail_json(msg="tmux is missing on this host; install it: sudo apt-get install tmux")
        code, out, error = self.module.run_command([tmux, "-L", claims.SOCKET, *argv])
        return code, out, error


def _state(pid: int | str) -> list[str]:
    """State and parent of a process, and what the kernel writes after them; empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()
    except OSError:
        return []


def _send(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes that may already be gone."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
