"""The watchdog of a worker: its time on a fake clock, its signals and its end in a real process, whose main thread hangs."""

import contextlib
import json
import signal
import subprocess
import sys

import pytest

from tests.unit.conftest import ROOT
from trainer.common.errors import FAILED, PREEMPTED
from trainer.rundir.metrics_log import Metrics
from trainer.rundir.phases import Phase
from trainer.worker.watchdog import HEARTBEAT_S, STOPS, Watchdog


class Kept(Watchdog):
    """One whose end is only noted."""

    ended = None

    def run(self):
        with contextlib.suppress(SystemExit):
            super().run()

    def end(self, code, message):
        self.ended = code, message
        raise SystemExit


@pytest.fixture
def begin(tmp_path, clock):
    """Start a watchdog with a start deadline of 300 s in a worker that has reached a phase."""
    kept = {number: signal.getsignal(number) for number in (*STOPS, signal.SIGUSR2)}

    def start(phase):
        metrics = Metrics(tmp_path / "metrics.jsonl")
        metrics.phase(phase)
        watchdog = Kept(metrics, 300.0, clock=clock)
        watchdog.start()
        return watchdog

    yield start
    signal.set_wakeup_fd(-1)
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("phase", ["starting", "joining", "connecting"])
def test_a_worker_that_waits_ends_at_the_deadline(phase, begin, clock):
    began, watchdog = clock.monotonic(), begin(phase)
    clock.until(lambda: not watchdog.is_alive(), "its end")
    assert watchdog.ended == (FAILED, f"start deadline: not all workers were there within 300 s, while {phase}")
    assert 300 <= clock.monotonic() - began <= 300 + 2 * HEARTBEAT_S


def test_a_worker_that_traces_takes_its_time(begin, clock, tmp_path):
    watchdog = begin("tracing")
    clock.sleep(3600.0)
    assert watchdog.is_alive()
    beats = [json.loads(line)["kind"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()[1:]]
    assert beats == ["heartbeat"] * len(beats)
    assert 700 <= len(beats) <= 720


STUCK = """
import sys, threading
from pathlib import Path
from tests.fake_clock import Hurried
from trainer.worker import watchdog
from trainer.rundir.metrics_log import Metrics

metrics = Metrics(Path(sys.argv[1]))
metrics.phase("joining")
watchdog.Watchdog(metrics, start_deadline=30.0, clock=Hurried(100.0)).start()
threading.Event().wait()
"""


def test_a_deadline_ends_a_process_that_hangs(tmp_path):
    argv = [sys.executable, "-c", STUCK, str(tmp_path / "metrics.jsonl")]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == FAILED
    assert ended.stderr == "start deadline: not all workers were there within 30 s, while joining\n"
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["phase"], last["note"]) == ("ended", ended.stderr.strip())


ASKED = """
import os, signal, sys
from pathlib import Path
from trainer.worker import watchdog
from trainer.rundir.metrics_log import Metrics

metrics = Metrics(Path(sys.argv[1]))
dog = watchdog.Watchdog(metrics, start_deadline=60)
dog.start()
metrics.phase(sys.argv[2])
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), watchdog.LET_IN)
# After the first signal.
dog.room_asked.wait(60)
sys.exit(7 if dog.stop_asked.is_set() else 8)
"""


@pytest.mark.parametrize(
    ("phase", "code"),
    [*((phase, 7) for phase in ("training", "validating", "saving", "evaluating")), ("tracing", PREEMPTED)],
)
def test_a_worker_asked_to_end_saves_first(phase, code, tmp_path):
    """One that has something to save; another ends at once."""
    argv = [sys.executable, "-c", ASKED, str(tmp_path / "metrics.jsonl"), phase]
    assert subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60).returncode == code


def test_a_chiefs_worker_stays_when_asked(tmp_path):
    """The chief saves its state with it."""
    argv = [sys.executable, "-c", ASKED, str(tmp_path / "metrics.jsonl"), Phase.SERVING]
    assert subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60).returncode == 8
