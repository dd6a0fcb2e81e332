"""One worker as a child process: started, watched by its heartbeats, ended."""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import code_of
from trainer.common.files import is_read_only
from trainer.host.process import STACKS
from trainer.rundir.phases import Phase
from trainer.supervision.failure import silent

LOOK_S = 0.5
"""Seconds between two looks at a worker's heartbeats."""
TAIL = 8192
"""Bytes at the end of metrics.jsonl with the last records."""
STEP, PHASE = re.compile(rb'"step": (\d{1,15})[,}]'), re.compile(rb'"phase": "([^"\\]{1,60})"')
END = re.compile(rb'"phase": "%b", "note": "([^"\\]{0,60})' % Phase.ENDED.encode())
HANG, SHORTEST_HANG_S = 20, 60.0
"""Training hangs if no step follows within so many times the longest interval before, but at least that many seconds."""
STACKS_S = 2.0
"""Seconds in which a worker writes the stacks of its threads before it is ended."""

Start = Callable[..., "subprocess.Popen[bytes]"]
"""Starts a process: `subprocess.Popen`, or what stands in for it."""


class Standby:
    """A process beside a worker that has already imported TensorFlow, and becomes the next worker on request (`standby_process`)."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]):
        """Start it with `--pipe` and `--parent`; call from the main thread, whose end would end it."""
        reader, self._writer = os.pipe()
        words = [*command, "--pipe", str(reader), "--parent", str(os.getpid())]
        self._process = subprocess.Popen(words, env=dict(environment), pass_fds=[reader])
        os.close(reader)
        self.pid = self._process.pid

    def become(self, arguments: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | None":
        """Let it run `python -m trainer ARGUMENTS` in this environment; None if it is gone, or does not listen."""
        order = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
        os.set_blocking(self._writer, False)
        try:
            ordered = self._process.poll() is None and os.write(self._writer, order) == len(order)
        except OSError:
            ordered = False
        os.close(self._writer)
        if not ordered:
            self._kill()
        return self._process if ordered else None

    def end(self) -> None:
        """End it."""
        os.close(self._writer)
        self._kill()

    def _kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@dataclass(frozen=True)
class Patience:
    """How long a worker may give no sign of life, or make no progress, in seconds."""

    silence: float
    """Without a heartbeat."""
    hang: float
    """In training, without a new step; less once it is known how long steps take."""


class Pulse:
    """Progress of a worker by its metrics.jsonl, with the times of the last changes."""

    def __init__(self, path: Path, clock: Clock = CLOCK):
        """Take the file; what is in it already does not count."""
        self._clock, self._path, self.step, self.phase, self.end = clock, path, 0, str(Phase.STARTING), ""
        self.longest = 0.0
        """Seconds between two changes of the step in training, at most."""
        self._stamp = self._now()
        self.heard_at = self.moved_at = clock.monotonic()

    def look(self) -> None:
        """Read what is new; times are those of this process' clock, whatever the host's does."""
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
        """Return whether training makes no progress: for `limit` seconds, or for many times as long as it took before."""
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
        standby: Standby | None = None,
        clock: Clock = CLOCK,
        popen: Start = subprocess.Popen,
    ):
        """Start it, if possible from `standby`; it writes to this process' standard output, and does not outlive this process."""
        self.pulse, self._clock = Pulse(metrics, clock), clock
        taken = standby.become(arguments, environment) if standby is not None else None
        self._process = taken or popen([*program, *arguments], env=dict(environment))
        self.pid = self._process.pid
        self.why = ""
        """Why it was ended from here."""

    def wait(self, patience: Patience, look: Callable[[Pulse], str] = lambda _: "") -> int:
        """Wait for its end, and return its exit code as a shell does; end it if it gives no sign of life or makes no progress.

        `look` is called twice a second while it runs, and says why it must end for another reason; empty while there is none.
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
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)
