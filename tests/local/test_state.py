"""The training state survives: it is saved by time on all workers at once, and wherever it is lost, the run ends with the same weights."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, SLOWEST, await_until
from tests.unit.samples import flip_a_bit
from trainer import sealed
from trainer.records import read_history
from trainer.telemetry import read_records

SETTINGS = "seed=3,train.global_batch=20,train.steps_per_call=2,train.steps_per_epoch=40,train.steps="
TRAIN = ("config=task_cnn", "workers=2")


@pytest.fixture(scope="module")
def undisturbed(scratch: LocalProject, pictures) -> str:
    """The weights' digest of a run whose state is saved at the end of its epochs only."""
    scratch.play("train", "run=undisturbed", f"dataset={pictures}", *TRAIN, f"set={SETTINGS}120")
    return scratch.summary("undisturbed")["weights_sha256"]


def records(project: LocalProject, run: str, worker: int, kind: str) -> list[dict]:
    """What a worker recorded in its last launch."""
    path = project.node(worker, run) / "workers" / f"worker{worker}" / "metrics.jsonl"
    return [record for record in read_records(path) if record["kind"] == kind]


def newest(folder: Path) -> Path:
    """The newest state in a run directory."""
    return folder / "state" / sealed.names(folder / "state")[-1]


def test_by_time_all_workers_save_after_the_same_steps_and_the_weights_stay_the_same(project, pictures, undisturbed):
    project.play("train", "run=timed", f"dataset={pictures}", *TRAIN, f"set={SETTINGS}120,checkpoint.every_seconds=0.05")
    first, second = (
        [record["note"] for record in records(project, "timed", worker, "phase") if record["phase"] == "saving"] for worker in (1, 2)
    )
    assert first == second
    assert any(note.startswith("step ") for note in first)
    assert project.summary("timed")["weights_sha256"] == undisturbed


@EXHAUSTIVE
def test_with_the_chiefs_state_damaged_then_its_disk_lost_the_run_ends_as_if_nothing_had_been(project, pictures, undisturbed):
    """No other copy is left on this machine either."""
    run = "lost"
    project.play("train", f"run={run}", f"dataset={pictures}", *TRAIN, f"set={SETTINGS}40")
    chief, here = project.node(1, run), project.run(run)
    assert newest(chief).name == newest(project.node(2, run)).name == "step-000000040.npz"
    flip_a_bit(newest(chief))
    shutil.rmtree(here / "state")
    resumed = project.play("train", f"run={run}", "set=train.steps=80")
    message = "state of step 40 on worker1 is damaged (its digest differs) and put aside; continuing from step 40 of worker2"
    assert message in resumed.stdout
    shutil.rmtree(chief)
    shutil.rmtree(here / "state")
    (here / "history.csv").unlink()
    project.play("train", f"run={run}", "set=train.steps=120")
    (warning,) = records(project, run, 1, "warning")
    assert warning["text"].startswith("the chief has no training state: all workers continue from the state of step 80 of rank 1 (")
    summary = project.summary(run)
    assert (summary["weights_sha256"], summary["exact"], summary["restarts"]) == (undisturbed, True, 2)
    assert [row["epoch"] for row in read_history(here / "history.csv")] == [1, 2, 3]


def test_workers_that_start_again_by_themselves_use_the_copy_of_a_state_that_is_damaged(project, pictures, undisturbed):
    run, more = "alone", f"set={SETTINGS}120,checkpoint.every_steps=20,checkpoint.keep=1,recovery.max_restarts=3"
    playbook = project.start("train", f"run={run}", f"dataset={pictures}", *TRAIN, more)
    chief = project.node(1, run)

    def is_saved() -> bool:
        return playbook.poll() is not None or (bool(sealed.names(project.node(2, run) / "state")) and project.steps(1, run) > 40)

    await_until(is_saved, 120, "forty steps")
    worker = project.trainer_pid(2, run)
    os.kill(worker, signal.SIGSTOP)
    await_until(lambda: _is_still(chief / "state"), 20, "the state")
    flip_a_bit(newest(chief))
    os.kill(worker, signal.SIGKILL)
    output, _ = playbook.communicate(timeout=240 * SLOWEST)
    assert playbook.returncode == 0, output
    assert any("damaged; all workers continue from the state of step" in record["text"] for record in records(project, run, 1, "warning"))
    assert project.summary(run)["weights_sha256"] == undisturbed


def _is_still(folder: Path) -> bool:
    """Whether nothing is written in a folder for a second: a stopped worker keeps the others from the next save."""
    before = sorted(path.name for path in folder.iterdir())
    time.sleep(1)
    return before == sorted(path.name for path in folder.iterdir()) and not any(name.startswith(".part-") for name in before)


@EXHAUSTIVE
def test_what_the_lost_chief_had_not_sent_starts_anew_and_the_result_says_so(project, pictures):
    run, compressed = "unsent", "reduction.name=powersgd,reduction.min_elements=1000,"
    project.play("train", f"run={run}", f"dataset={pictures}", *TRAIN, f"set={compressed}{SETTINGS}40")
    for folder in ("state", "workers/worker1/memory"):
        shutil.rmtree(project.run(run) / folder)
    shutil.rmtree(project.node(1, run))
    resumed = project.play("train", f"run={run}", "set=train.steps=60")
    reason = "what the reduction had not sent at step 40 started anew (missing or damaged on rank 0)"
    assert f"worker1: {reason}: the weights will differ a little" in resumed.stdout
    summary = project.summary(run)
    assert (summary["steps"], summary["exact"], summary["inexact_because"]) == (60, False, [reason])
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    for worker in (1, 2):
        assert newest(project.node(worker, run)).name == "step-000000060.npz"
