"""A worker's metrics.jsonl: what it does, that it is alive, what it measured; see `trainer.worker.telemetry` for its lines.

While the disk is full or read-only, lines wait, and the file's mtime is the heartbeat. Standard library only: supervisors write it, too.
"""

import contextlib
import json
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from trainer.common.files import refused
from trainer.rundir.full_disk import Reserve
from trainer.rundir.phases import Phase

METRICS, WORKER_LOG = "metrics.jsonl", "worker.log"
"""In a worker's folder: its records, and what it printed."""
HEARTBEAT_S = 5.0
"""Between two heartbeats of a worker."""
SAMPLES = ("heartbeat", "steps", "split")
"""Kinds that are dropped while other lines wait for room on the disk."""


class Metrics:
    """Appends whole lines to metrics.jsonl; safe from several threads."""

    def __init__(self, path: Path, reserve: Reserve | None = None):
        """Take the file's path, and the reserve for warnings on a full disk."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._stream = path, path.open("ab", buffering=0)
        self._reserve = reserve
        self._waiting: deque[bytes] = deque()
        self._begun = b""
        """The unwritten rest of the line that was begun last."""
        self._lock = threading.Lock()
        self.phase_name, self.step = Phase.STARTING, 0

    def phase(self, name: Phase, note: str = "") -> None:
        """Record what this worker is doing now."""
        self.phase_name = name
        self.record("phase", phase=name, note=note)

    def caching(self, count: int, total: int) -> None:
        """Record how many images are packed or fetched."""
        self.phase(Phase.CACHING, f"{count}/{total} images")

    def heartbeat(self) -> None:
        """Record that this worker is alive."""
        self.record("heartbeat", phase=self.phase_name, step=self.step)

    def warning(self, text: str) -> None:
        """Warn the user at once, in worker.log and on the terminal of anyone watching."""
        print(f"warning: {text}", flush=True)
        self.record("warning", text=text)

    def record(self, kind: str, **values: Any) -> None:
        """Append a line of this kind."""
        line = json.dumps({"t": round(time.time(), 3), "kind": kind, **values}).encode() + b"\n"
        with self._lock:
            if kind not in SAMPLES or not (self._waiting or self._begun):
                self._waiting.append(line)
            if self._send():
                return
            # On a file system that is read-only, nobody takes silence for an end.
            with contextlib.suppress(OSError):
                os.utime(self._path)
            if kind == "warning" and self._reserve is not None:
                self._begun += self._waiting.pop() if self._waiting else b""
                self._reserve.release()
                try:
                    self._send(last=True)
                finally:
                    self._reserve.take()

    def _send(self, last: bool = False) -> bool:
        """Write the waiting lines, or with `last` only the line begun last; return whether the disk had room."""
        try:
            while self._begun or (self._waiting and not last):
                self._begun = self._begun or self._waiting.popleft()
                self._begun = self._begun[self._stream.write(self._begun) :]
        except OSError as error:
            if not refused(error):
                raise
            return False
        return True
