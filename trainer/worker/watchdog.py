"""A thread that watches its own worker: heartbeats, signals, and a deadline for the start.

TensorFlow blocks the main thread in native code while it waits for peers. A wake-up descriptor for signals reaches this thread.
"""

import os
import signal
import socket
import sys
import threading

from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import FAILED, PREEMPTED
from trainer.host.process import LET_IN
from trainer.rundir.metrics_log import HEARTBEAT_S, Metrics
from trainer.rundir.phases import WAITING, Phase

STOPS = (signal.SIGTERM, signal.SIGINT)


class Watchdog(threading.Thread):
    """Watches one worker process from inside."""

    def __init__(self, metrics: Metrics, start_deadline: float, late: int = FAILED, clock: Clock = CLOCK):
        """Install the signal handlers; call from the main thread.

        `start_deadline`: seconds that this worker waits for its peers before it ends with the exit code `late`.
        """
        super().__init__(daemon=True)
        self._metrics, self._deadline, self._late, self._clock = metrics, start_deadline, late, clock
        self.stop_asked, self.room_asked = threading.Event(), threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self.catch_signals()

    def catch_signals(self) -> None:
        """Route SIGTERM and SIGINT here; call it again after TensorFlow starts, which takes over SIGTERM."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (*STOPS, LET_IN):
            signal.signal(number, lambda *_: None)

    @staticmethod
    def ignore_signals() -> None:
        """Keep a late SIGTERM from changing the exit code while Python shuts down."""
        for number in (*STOPS, LET_IN):
            signal.signal(number, signal.SIG_IGN)

    def run(self) -> None:
        """Write heartbeats, and react to signals and to a start that takes too long."""
        waiting_since = self._clock.monotonic()
        while True:
            if self._clock.select([self._reader], HEARTBEAT_S):
                self._signalled(self._reader.recv(1)[0])
            else:
                self._metrics.heartbeat()
            if self._metrics.phase_name not in WAITING:
                waiting_since = self._clock.monotonic()
            elif self._clock.monotonic() - waiting_since > self._deadline:
                waited = f"not all workers were there within {self._deadline:.0f} s, while {self._metrics.phase_name}"
                self.end(self._late, f"start deadline: {waited}")

    def _signalled(self, number: int) -> None:
        if number == LET_IN:
            self.room_asked.set()
            return
        # A worker that computes for a chief is ended by its supervisor, once the chief has saved the state.
        if self._metrics.phase_name in (Phase.ENDED, Phase.SERVING):
            return
        name = signal.Signals(number).name
        if self._metrics.phase_name not in (Phase.TRAINING, Phase.VALIDATING, Phase.SAVING, Phase.EVALUATING):
            self.end(PREEMPTED, f"{name} while {self._metrics.phase_name}: ending at once")
        self.stop_asked.set()
        print(f"{name}: saving the state after this call, then ending", flush=True)

    def end(self, code: int, message: str) -> None:
        """End this process at once, from any thread."""
        try:
            print(message, file=sys.stderr, flush=True)
            self._metrics.phase(Phase.ENDED, message)
        finally:
            os._exit(code)
