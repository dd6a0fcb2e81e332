"""The watchdog of a worker: a real process, whose main thread hangs."""

import json
import subprocess
import sys

import pytest

from tests.unit.conftest import ROOT

STUCK = """
import sys, threading
from pathlib import Path
from trainer import watchdog
from trainer.metrics import Metrics

watchdog.HEARTBEAT_S = 0.05
metrics = Metrics(Path(sys.argv[1]))
watchdog.Watchdog(metrics, start_deadline=0.3).start()
metrics.phase(sys.argv[2])
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
