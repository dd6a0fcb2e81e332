"""benchmarks/inference.yml from the command line to its results, and ended half-way.

What it refuses: tests/unit/benchmarks/test_planned.py.
"""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from PIL import Image

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, SLOWEST, await_until

SNAPSHOT = """
import sys
from trainer import models
models.build({"name": "task_cnn"}, (8, 8, 1), 3).save(sys.argv[1])
"""


@pytest.fixture(scope="module")
def bench(project: LocalProject) -> LocalProject:
    """The project, and a run that has a snapshot."""
    snapshot = project.run("to-predict") / "checkpoints/epoch-0003.keras"
    snapshot.parent.mkdir(parents=True)
    (project.run("to-predict") / "config.yml").write_text("model: {name: task_cnn}\n")
    (project.run("to-predict") / "cluster.json").write_text("{}\n")
    subprocess.run([sys.executable, "-c", SNAPSHOT, str(snapshot)], cwd=project.root, env=project.environment(), check=True)
    yield project
    shutil.rmtree(project.run("to-predict"))


def results(project: LocalProject):
    return sorted((project.root / "benchmarks/results").glob("inference-*"))


def nothing_is_left(project: LocalProject) -> bool:
    return not list((project.root / ".lockstep").glob("worker*/benchmarks"))


@EXHAUSTIVE
def test_a_snapshot_predicts_on_one_and_two_devices(bench):
    done = bench.play("benchmarks/inference", "run=to-predict", "devices=1,2", "batches=4,16", "passes=2")
    (folder,) = results(bench)
    assert {path.name for path in folder.iterdir()} == {"results.csv", "summary.json", "inference.png"}
    with (folder / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["number"], row["batch"], row["devices"]) for row in rows] == [
        (number, batch, devices) for number, order in (("1", "12"), ("2", "21")) for batch in ("2", "4", "16") for devices in order
    ]
    assert all(float(row["seconds"]) > 0 for row in rows)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["of"], summary["devices"], summary["smallest_batch"]) == ("epoch 3 of run to-predict", "CPU", 2)
    assert summary["model"] == "task_cnn"
    assert summary["answer"] in done.stdout
    assert "TensorFlow's one pool of" in summary["answer"]
    assert "     16        2  " in done.stdout
    with Image.open(folder / "inference.png") as picture:
        assert picture.size == (960, 630)
    assert nothing_is_left(bench)


@EXHAUSTIVE
def test_ended_half_way_it_leaves_nothing(bench):
    before = results(bench)
    process = bench.start("benchmarks/inference", "run=to-predict", "devices=1", "batches=4", "passes=1000")
    try:
        sessions = bench.root / ".lockstep/worker1/benchmarks"
        await_until(lambda: bool(list(sessions.glob("inference-*/metrics.jsonl"))), 60, "the benchmark runs")
        name = next(sessions.iterdir()).name
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=30 * SLOWEST)
        await_until(lambda: nothing_is_left(bench), 20, "its folder is removed")
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode != 0
    listed = subprocess.run(["tmux", "-L", "lockstep", "list-sessions"], capture_output=True, text=True, check=False)
    assert name not in listed.stdout
    assert results(bench) == before
