"""benchmarks/inference.yml, ended half-way.

What it refuses: tests/unit/benchmarks/test_planned.py; run to its end: `python -m tests.docs_commands run benchmarks/inference.yml`.
"""

import os
import signal
import subprocess

from tests.project import EXHAUSTIVE, SLOWEST, await_until


@EXHAUSTIVE
def test_ended_half_way_it_leaves_nothing(project):
    process = project.start("benchmarks/inference", "config=task_cnn", "devices=1", "batches=4", "passes=1000")
    sessions = project.root / ".lockstep/worker1/benchmarks"
    await_until(lambda: bool(list(sessions.glob("inference-*/metrics.jsonl"))), 60, "the benchmark runs")
    name = next(sessions.iterdir()).name
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30 * SLOWEST)
    await_until(lambda: not list((project.root / ".lockstep").glob("worker*/benchmarks")), 20, "its folder is removed")
    assert process.returncode != 0
    listed = subprocess.run(["tmux", "-L", "lockstep", "list-sessions"], capture_output=True, text=True, check=False)
    assert name not in listed.stdout
    assert not list((project.root / "benchmarks/results").glob("inference-*"))
