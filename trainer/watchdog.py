"""A thread that keeps a worker honest: heartbeats, signals, and a deadline for the start.

TensorFlow blocks the main thread in native code while it waits for peers, where Python's signal
handlers can't run. A wake-up descriptor reaches this thread all the same.
"""

import os
import signal
import socket
import sys
import threading
import time

from trainer.errors import FAILED, PREEMPTED
from trainer.telemetry import Metrics

HEARTBEAT_S = 5.0
WAITING = ("starting", "joining")


class Watchdog(threading.Thread):
    """Watches one worker process from inside."""

    def __init__(self, metrics: Metrics, start_deadline: float):
        """Install the signal handlers; call from the main thread.

        Args:
            metrics: where heartbeats go.
            start_deadline: seconds that this worker waits for its peers.
        """
        super().__init__(daemon=True)
        self._metrics, self._deadline = metrics, start_deadline
        self.stop_asked = threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._reader.settimeout(HEARTBEAT_S)
        self.catch_signals()

    def catch_signals(self) -> None:
        """Route SIGTERM and SIGINT here; again after TensorFlow's start, which takes SIGTERM for itself."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    @staticmethod
    def ignore_signals() -> None:
        """All is said and done: a late SIGTERM must not change the exit code while Python ends."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    def run(self) -> None:
        """Beat, and react to signals and to a start that takes too long."""
        waiting_since = time.monotonic()
        while True:
            try:
                self._signalled(self._reader.recv(1)[0])
            except TimeoutError:
                self._metrics.heartbeat()
            if self._metrics.phase_name not in WAITING:
                waiting_since = time.monotonic()
            elif time.monotonic() - waiting_since > self._deadline:
                self._end(FAILED, f"start deadline: not all workers joined within {self._deadline:.0f} s")

    def _signalled(self, number: int) -> None:
        if self._metrics.phase_name == "ended":
            return
        name = signal.Signals(number).name
        if self._metrics.phase_name not in ("training", "validating", "saving"):
            self._end(PREEMPTED, f"{name} while {self._metrics.phase_name}: ending at once")
        self.stop_asked.set()
        print(f"{name}: saving the state after this call, then ending", flush=True)

    def _end(self, code: int, message: str) -> None:
        print(message, file=sys.stderr, flush=True)
        self._metrics.phase("ended", message)
        os._exit(code)
