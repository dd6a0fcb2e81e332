"""One worker as a child process: started, watched by its heartbeats, ended."""

import contextlib
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import ClusterError, code_of
from trainer.common.files import is_read_only
from trainer.host.process import STACKS
from trainer.rundir.phases import Phase
from trainer.supervision.failure import silent
from trainer.supervision.forked import Forked, ForkServer

LOOK_S = 0.5
"""Seconds between two looks at a worker's heartbeats."""
TAIL = 8192
"""Bytes at the end of metrics.jsonl that are read for the last records."""
STEP, PHASE = re.compile(rb'"step": (\d{1,15})[,}]'), re.compile(rb'"phase": "([^"\\]{1,60})"')
END = re.compile(rb'"phase": "%b", "note": "([^"\\]{0,60})' % Phase.ENDED.encode())
HANG, SHORTEST_HANG_S = 20, 60.0
"""Limits for a hanging training without a new step: a multiple of the longest earlier interval, and the least limit in seconds."""
STACKS_S = 2.0
"""Seconds in which a worker writes the stacks of its threads before it is ended."""

Start = Callable[..., "subprocess.Popen[bytes]"]
"""Function that starts a process: `subprocess.Popen` or a replacement."""


@dataclass(frozen=True)
class Patience:
    """Longest times without a sign of life, and without progress, seconds."""

    silence: float
    """Limit without a heartbeat."""
    hang: float
    """Limit in training without a new step; shorter once the duration of steps is known."""


class Pulse:
    """Progress of a worker, from its metrics.jsonl, with the times of the last changes."""

    def __init__(self, path: Path, clock: Clock = CLOCK):
        """Take the file; its present content does not count."""
        self._clock, self._path, self.step, self.phase, self.end = clock, path, 0, str(Phase.STARTING), ""
        self.longest = 0.0
        """Longest time between two steps in training, seconds."""
        self._stamp = self._now()
        self.heard_at = self.moved_at = clock.monotonic()

    def look(self) -> None:
        """Read new records; times are on this process' clock, so changes of the host's clock do not matter."""
        stamp = self._now()
        if stamp == self._stamp:
            if is_read_only(self._path):
                # A worker that can write no heartbeat is not silent.
                self.heard_at = self.moved_at = self._clock.monotonic()
            return
        self._stamp, self.heard_at = stamp, self._clock.monotonic()
        with contextlib.suppress(OSError), self._path.open("rb") as stream:
            stream.seek(max(0, stamp[0] - TAIL))
            last = stream.read(TAIL)
            steps, phases, ends = STEP.findall(last), PHASE.findall(last), END.findall(last)
            self._note(int(steps[-1]) if steps else self.step, phases[-1].decode(errors="replace") if phases else self.phase)
            self.end = ends[-1].decode(errors="replace") if ends and self.phase == Phase.ENDED else ""

    def _note(self, step: int, phase: str) -> None:
        if (step, phase) == (self.step, self.phase):
            return
        if phase == self.phase == Phase.TRAINING:
            self.longest = max(self.longest, self.heard_at - self.moved_at)
        self.step, self.phase, self.moved_at = step, phase, self.heard_at

    def hangs(self, limit: float) -> bool:
        """Return whether training makes no progress for `limit` seconds, or for many times the duration of earlier steps."""
        usual = max(SHORTEST_HANG_S, HANG * self.longest) if self.longest else limit
        return self.phase == Phase.TRAINING and self._clock.monotonic() - self.moved_at > min(limit, usual)

    def _now(self) -> tuple[int, int]:
        try:
            stat = self._path.stat()
        except OSError:
            return 0, 0
        return stat.st_size, stat.st_mtime_ns


class Child:
    """A worker of one generation."""

    def __init__(
        self,
        program: Sequence[str],
        arguments: Sequence[str],
        environment: Mapping[str, str],
        metrics: Path,
        forks: ForkServer | None = None,
        clock: Clock = CLOCK,
        popen: Start = subprocess.Popen,
    ):
        """Start the worker, if possible from `forks`. It writes to this process' standard output, and does not outlive this process."""
        self.pulse, self._clock = Pulse(metrics, clock), clock
        self.refusal = ""
        """Reason why `forks` did not start it; empty if there is none."""
        self._process: Forked | subprocess.Popen[bytes]
        try:
            self._process = forks.fork(arguments, environment) if forks else popen([*program, *arguments], env=dict(environment))
        except ClusterError as error:
            self.refusal, self._process = str(error), popen([*program, *arguments], env=dict(environment))
        self.pid = self._process.pid
        self.why = ""
        """Reason why this process ended the worker; empty if it did not."""

    def wait(self, patience: Patience, look: Callable[[Pulse], str] = lambda _: "") -> int:
        """Wait for the worker's end, and return its exit code as a shell does; end it if it gives no sign of life or makes no progress.

        `look` is called twice a second while the worker runs. It returns any other reason to end the worker, empty while there is none.
        """
        while True:
            try:
                code = code_of(self._process.wait(LOOK_S))
            except subprocess.TimeoutExpired:
                self._check(patience, look(self.pulse))
            else:
                self.pulse.look()
                return code

    def _check(self, patience: Patience, unwanted: str) -> None:
        pulse = self.pulse
        pulse.look()
        now = self._clock.monotonic()
        if unwanted:
            self._end(unwanted)
        elif now - pulse.heard_at > patience.silence:
            self._end(f"gave {silent(now - pulse.heard_at)}")
        elif pulse.hangs(patience.hang):
            self.signal(STACKS)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STACKS_S)
            self._end(f"made no step for {now - pulse.moved_at:.0f} s (the stacks of its threads are in its log)")

    def _end(self, why: str) -> None:
        self.why = why
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal, unless the worker has ended."""
        self._process.send_signal(number)
