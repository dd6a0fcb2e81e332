"""Runs that wait for their turn: in order, over the death of their command and of what waits, and cancelled."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.local_project import LocalProject
from tests.project import SLOWEST, await_until
from trainer.supervision.turn import QUEUED
from trainer.telemetry import read_records

SMALL = "set=train.global_batch=20,train.steps=6,train.steps_per_epoch=3,reduction.name=packed"
HOLDS = "import os, time\nwhile not os.path.exists({path!r}):\n    time.sleep(0.1)\n"


def queued(project: LocalProject, run: str, *more: str) -> str:
    return project.play("train", f"run={run}", "queue=true", *more).stdout


def waiting_pid(project: LocalProject, worker: int, run: str) -> int:
    """Process id of what waits for a worker's turn."""
    own = f"--folder={project.node(worker, run)}/workers/worker{worker}".encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if own in words and b"trainer.supervision.turn" in words:
            return int(entry.parent.name)
    raise AssertionError(f"nothing waits for worker{worker} of {run}")


def is_told(project: LocalProject, run: str) -> str:
    """For what the chief's waiting process waits; empty if it does not."""
    path = project.node(1, run) / "workers/worker1/metrics.jsonl"
    phases = [record for record in read_records(path) if record["kind"] == "phase"] if path.is_file() else []
    return phases[-1]["note"] if phases and phases[-1]["phase"] == QUEUED else ""


def ended(project: LocalProject, run: str) -> bool:
    return all((project.node(worker, run) / f"workers/worker{worker}/exit.json").is_file() for worker in (1, 2))


@pytest.fixture
def holder(project, tmp_path):
    """A script that has both workers until the file `go` of the test's folder is there."""
    script = tmp_path / "holds.py"
    script.write_text(HOLDS.format(path=str(tmp_path / "go")))
    run = f"now{len(list(project.root.glob('runs/now*')))}"
    output = queued(project, run, f"script={script}")
    assert re.search(f"{run} is (under way|queued: next)", output), output
    queues = [project.root / f".lockstep/worker{worker}/queue" for worker in (1, 2)]
    await_until(lambda: not any([*queue.iterdir()] for queue in queues), 60, "the script's turn")
    yield run
    (tmp_path / "go").touch()
    await_until(lambda: ended(project, run), 60, "the script ends")


def test_queued_runs_end_in_their_order_though_their_command_and_what_waits_are_killed(project, pictures, tmp_path, holder):
    training = ("config=task_cnn", f"dataset={pictures}", SMALL)
    output = queued(project, "first", *training)
    assert f"first is queued: behind run {holder}\n" in output, output
    watching = project.start("train", "run=second", "queue=true", "detach=false", *training)
    await_until(lambda: is_told(project, "second") == "behind run first, which was queued before", 60, "the second run waits")
    watching.send_signal(signal.SIGKILL)
    watching.communicate(timeout=30 * SLOWEST)
    queued(project, "unwanted", f"script={tmp_path / 'holds.py'}")
    assert len(list((project.root / ".lockstep/worker1/queue").iterdir())) == 3

    listed = project.play("status", "run=second").stdout
    assert "second: QUEUED (2)" in listed, listed
    rows = dict(re.findall(r"^  (now0|first|second|unwanted) +(RUNNING|QUEUED \(\d\))", listed, re.MULTILINE))
    assert rows == {holder: "RUNNING", "first": "QUEUED (1)", "second": "QUEUED (2)", "unwanted": "QUEUED (3)"}, listed
    refused = project.play("playbooks/delete_run", "run=second", check=False)
    assert refused.returncode != 0, refused.stdout
    assert "unwanted: CANCELLED" in project.play("stop", "run=unwanted").stdout
    assert len(list((project.root / ".lockstep/worker1/queue").iterdir())) == 2

    for worker in (1, 2):
        killed = waiting_pid(project, worker, "first")
        os.kill(killed, signal.SIGKILL)
        await_until(lambda worker=worker, killed=killed: waiting_pid_or(project, worker, killed) != killed, 30, "it waits again")
    (tmp_path / "go").touch()
    for run in ("first", "second"):
        await_until(lambda run=run: ended(project, run), 120, f"{run} ends")
    began = {}
    for run in ("first", "second"):
        project.play("train", f"run={run}")
        summary = project.summary(run)
        assert (summary["state"], summary["steps"], summary["restarts"]) == ("SUCCEEDED", 6, 0)
        records = read_records(project.run(run) / "workers/worker1/metrics.jsonl")
        began[run] = next(record["t"] for record in records if record["kind"] == "generation")
    end = json.loads((project.node(1, "first") / "workers/worker1/exit.json").read_text())["ended_at"]
    assert end < began["second"]
    assert not list((project.root / ".lockstep/worker1/queue").iterdir())


def waiting_pid_or(project: LocalProject, worker: int, otherwise: int) -> int:
    try:
        return waiting_pid(project, worker, "first")
    except AssertionError:
        return otherwise


def test_without_queue_a_run_is_refused_and_with_check_nothing_is_queued(project, pictures, holder):
    training = ("config=task_cnn", f"dataset={pictures}", SMALL)
    refused = project.play("train", "run=other", *training, check=False)
    assert refused.returncode != 0
    assert "wait for it (-e queue=true does)" in refused.stdout, refused.stdout
    checked = project.play("train", "run=other", "queue=true", "--check", *training)
    assert "changed=0" in checked.stdout
    queue = project.root / ".lockstep/worker1/queue"
    assert not list(queue.iterdir())


def test_a_queued_script_is_watched_to_its_end_and_a_detached_one_that_has_ended_is_listed(project, tmp_path):
    (tmp_path / "prints.py").write_text("print('it ran')")
    watched = queued(project, "watched", f"script={tmp_path / 'prints.py'}", "detach=false")
    assert "worker1: it ran" in watched
    assert "watched: SUCCEEDED" in watched
    assert not (project.node(1, "watched") / "workers/worker1/supervisor.json").exists()
    (tmp_path / "holds.py").write_text(HOLDS.format(path=str(tmp_path / "go")))
    queued(project, "left", f"script={tmp_path / 'holds.py'}")
    (tmp_path / "go").touch()
    await_until(lambda: ended(project, "left"), 30, "it ends")
    assert re.search(r"^  left +ended, not collected", project.play("status", "run=watched").stdout, re.MULTILINE)
