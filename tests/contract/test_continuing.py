"""A run is continued: with more epochs, without its disks, after a stop, with other workers, from another run's weights."""

import shutil
from pathlib import Path

import pytest

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, await_until
from tests.unit.samples import flip_a_bit
from trainer.records import read_history
from trainer.telemetry import chief_records

SETTINGS = "train.global_batch=20,train.steps_per_call=8,data.image_size=[8,8,3],checkpoint.snapshots=2"
"""144 images for training: 8 steps per epoch."""
POWERSGD = "reduction.name=powersgd,reduction.warmup_steps=0"


def train(project: LocalProject, pictures: Path, name: str, *more: str, settings: str = "", **options):
    given = ("config=task_cnn", f"dataset={pictures}", f"set={SETTINGS}{settings and f',{settings}'}", "preflight=false")
    return project.play("train", f"run={name}", *given, *more, **options)


@pytest.fixture(scope="module")
def whole(project, pictures):
    """Three epochs at once."""
    return train(project, pictures, "whole", "epochs=3")


def losses(project: LocalProject, name: str):
    return [(row["epoch"], row["loss"], row["val_loss"]) for row in read_history(project.run(name) / "history.csv")]


def test_more_epochs_continue_to_equal_weights(project, pictures, whole):
    """Also from the control node's copy, when all hosts lost their disks."""
    train(project, pictures, "grown", "epochs=2")
    for worker in (1, 2):
        shutil.rmtree(project.node(worker, "grown"))
    project.play("train", "run=grown", "epochs=3")
    assert project.summary("grown")["restarts"] == 1
    assert project.summary("grown")["weights_sha256"] == project.summary("whole")["weights_sha256"]
    assert losses(project, "grown") == losses(project, "whole")


def test_snapshots_are_kept_as_asked_and_stored_once(project, whole):
    """On a machine that is both control node and host."""
    assert "(checkpoint.snapshots: 2)" in whole.stdout
    here, there = (sorted((folder / "checkpoints").iterdir()) for folder in (project.run("whole"), project.node(1, "whole")))
    assert [path.name for path in here] == [path.name for path in there] == ["epoch-0002.keras", "epoch-0003.keras"]
    assert [path.stat().st_ino for path in here] == [path.stat().st_ino for path in there]


def test_a_stop_in_the_last_call_counts(project, pictures):
    """It is asked for in the second epoch's call of seven steps, and seen in that of its last step, which ends the epoch, too."""
    project.hold("edge", 11)
    train(project, pictures, "edge", "epochs=40", "detach=true")
    await_until(lambda: project.steps(1, "edge") == 8, 60, "the first epoch")
    project.play("stop", "run=edge")
    assert (project.summary("edge")["state"], project.summary("edge")["epochs_done"]) == ("CANCELLED", 2)
    assert [row[0] for row in losses(project, "edge")] == [1, 2]


def test_weights_changed_on_the_way_are_not_loaded(project, pictures, whole):
    given = f"weights={project.run('whole')}/checkpoints/epoch-0003.keras"
    attacked = "{{ [plan.weights.name] | map('regex_replace', '^', dfs_path ~ '/code/') | first }}"
    argv = ["dd", "if=/dev/zero", f"of={attacked}", "bs=1", "count=8", "conv=notrunc"]
    run = ("run=attacked", "config=task_cnn", f"dataset={pictures}", given, f"set={SETTINGS}", "preflight=false")
    done = project.train_attacked(argv, *run)
    assert done.returncode != 0
    assert "weights=epoch-0003.keras" in done.stdout
    assert "was given" in done.stdout


def newest_part(project: LocalProject, worker: int) -> Path:
    """What a worker's reduction had not sent, in its newest state."""
    return max((project.node(worker, "squeezed") / "workers" / f"worker{worker}" / "memory").glob("*.npz"))


def test_a_workers_lost_part_is_replaced_or_missed(project, pictures):
    """A damaged one comes from the copy here; with fewer workers all start anew; a missing one is told and stays in the result."""
    train(project, pictures, "squeezed", "epochs=1", "workers=3", settings=POWERSGD)
    flip_a_bit(newest_part(project, 2))
    mended = project.play("train", "run=squeezed", "epochs=2").stdout
    assert "worker2's part of the state of step 8 on worker2 is damaged (its digest differs) and put aside" in mended
    assert project.summary("squeezed")["exact"] is True
    project.play("train", "run=squeezed", "epochs=3", "workers=2")
    log = (project.run("squeezed") / "workers" / "worker1" / "worker.log").read_text()
    assert "started anew (3 workers saved it, 2 go on)" in log
    for folder in (project.node(2, "squeezed"), project.run("squeezed")):
        shutil.rmtree(folder / "workers" / "worker2" / "memory")
    missed = project.play("train", "run=squeezed", "epochs=4").stdout
    reason = "what the reduction had not sent at step 24 started anew (missing or damaged on rank 1)"
    assert f"worker1: {reason}: the weights will differ a little" in missed
    assert f"{reason}; the weights differ a little" in missed
    summary = project.summary("squeezed")
    assert (summary["exact"], summary["state"], summary["steps"]) == (False, "SUCCEEDED", 32)
    assert summary["inexact_because"][-1] == reason
    assert [record["epoch"] for record in chief_records(project.run("squeezed")) if record["kind"] == "epoch"] == [4]


@EXHAUSTIVE
def test_a_dataset_is_copied_once(project, pictures, tmp_path):
    """Where the control node packs elsewhere."""
    where = (f"dfs_path={tmp_path}/shared", f"control_packs={tmp_path}/packs/datasets")
    train(project, pictures, "shared", "epochs=1", *where)
    (folder,) = (tmp_path / "shared" / "datasets").iterdir()
    before = (folder / "data-00000.pack").stat()
    train(project, pictures, "shared-again", "epochs=1", *where)
    after = (folder / "data-00000.pack").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert len(list((tmp_path / "shared" / "code").iterdir())) == 1
