"""The watchdog of a worker: a real process, whose main thread hangs."""

import json
import subprocess
import sys

import pytest

from tests.unit.conftest import ROOT
from trainer.asynchronous.server import SERVING
from trainer.errors import PREEMPTED

STUCK = """
import sys, threading
from pathlib import Path
from trainer import watchdog
from trainer.metrics import Metrics

watchdog.HEARTBEAT_S = 0.05
metrics = Metrics(Path(sys.argv[1]))
metrics.phase(sys.argv[2])
watchdog.Watchdog(metrics, start_deadline=0.3).start()
threading.Event().wait(float(sys.argv[3]))
"""


def stuck(path, phase, seconds):
    argv = [sys.executable, "-c", STUCK, str(path), phase, str(seconds)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("phase", ["starting", "joining", "connecting"])
def test_a_worker_that_waits_for_others_ends_at_the_start_deadline(phase, tmp_path):
    ended = stuck(tmp_path / "metrics.jsonl", phase, 30)
    assert ended.returncode == 1
    assert ended.stderr == f"start deadline: not all workers were there within 0 s, while {phase}\n"
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["phase"], last["note"]) == ("ended", ended.stderr.strip())


def test_a_worker_that_traces_takes_its_time(tmp_path):
    assert stuck(tmp_path / "metrics.jsonl", "tracing", 1.5).returncode == 0


ASKED = """
import os, signal, sys
from pathlib import Path
from trainer import watchdog
from trainer.metrics import Metrics

metrics = Metrics(Path(sys.argv[1]))
dog = watchdog.Watchdog(metrics, start_deadline=60)
dog.start()
metrics.phase(sys.argv[2])
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(7 if dog.stop_asked.wait(float(sys.argv[3])) else 8)
"""


@pytest.mark.parametrize(
    ("phase", "code"),
    [*((phase, 7) for phase in ("training", "validating", "saving", "evaluating")), ("tracing", PREEMPTED)],
)
def test_a_worker_that_has_something_to_save_ends_by_itself_when_it_is_asked(phase, code, tmp_path):
    argv = [sys.executable, "-c", ASKED, str(tmp_path / "metrics.jsonl"), phase, "20"]
    assert subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60).returncode == code


def test_a_worker_that_computes_for_a_chief_is_there_until_its_supervisor_ends_it(tmp_path):
    """The chief saves its state with it."""
    argv = [sys.executable, "-c", ASKED, str(tmp_path / "metrics.jsonl"), SERVING, "1"]
    assert subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60).returncode == 8
