"""A run is continued: with more epochs, without its disks, after a stop, with other workers, from another run's weights."""

import shutil
import zipfile
from pathlib import Path

import pytest

from control.remote.worker_files import chief_records
from control.runs.planning import plan_request
from tests.contract.hosts import ONCE, Hosts
from tests.project import EXHAUSTIVE
from tests.unit.samples import flip_a_bit
from trainer.common.errors import FAILED, RESTART
from trainer.rundir.schemas import read_history

SETTINGS = {"seed": 3, "train.global_batch": 20, "train.steps_per_call": 8, "data.image_size": [8, 8, 3], "checkpoint.snapshots": 2}
"""144 images for training: 8 steps per epoch."""
POWERSGD = {"reduction.name": "powersgd", "reduction.warmup_steps": 0}


def given(pictures: Path, name: str, *more: str) -> tuple[str, ...]:
    """Arguments of a first launch."""
    settings = ",".join(f"{name}={value}".replace(" ", "") for name, value in {**SETTINGS, **POWERSGD}.items())
    return (f"run={name}", "config=task_cnn", f"dataset={pictures}", f"set={settings}", "preflight=false", *more)


@pytest.fixture(scope="module")
def initial(tmp_path_factory) -> Path:
    """Weights to start with."""
    file = tmp_path_factory.mktemp("weights") / "epoch-0002.keras"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("weights", b"weights")
    return file


@pytest.fixture(scope="module")
def grown(project, pictures, initial) -> str:
    """A run of one epoch that is continued with another, after all hosts have lost their disks; the output of the first launch."""
    output = project.play("train", *given(pictures, "grown", "epochs=1", f"weights={initial}")).stdout
    for worker in (1, 2):
        shutil.rmtree(project.node(worker, "grown"))
    project.play("train", "run=grown", "epochs=2", "preflight=false")
    return output


def losses(run: Path):
    return [(row["epoch"], row["loss"], row["val_loss"]) for row in read_history(run / "history.csv")]


def test_more_epochs_continue_to_equal_weights(project, pictures, grown, initial, tmp_path):
    """From the weights it was given, the control node's copy of the state, and of what the reduction had not sent."""
    whole, two_epochs = Hosts(tmp_path, project, pictures), {"train.steps": None, "train.steps_per_epoch": None, "train.epochs": 2}
    whole.launch(SETTINGS, POWERSGD, two_epochs, {"train.weights": plan_request._weights(str(initial))}, weights=initial)
    whole.end()
    expected, summary = whole.summary(), project.summary("grown")
    assert (summary["steps"], summary["restarts"], summary["exact"]) == (16, 1, True)
    assert summary["weights_sha256"] == expected["weights_sha256"]
    assert losses(project.run("grown")) == losses(whole.run(1))


def test_weights_changed_on_the_way_are_not_loaded(hosts, initial, tmp_path):
    file, run = Path(shutil.copy(initial, tmp_path)), hosts()
    given = {"train.weights": plan_request._weights(str(file))}
    file.write_bytes(b"others")
    run.launch(ONCE, given, weights=file)
    run.end(worker1=FAILED, worker2=RESTART)
    assert f"weights=epoch-0002.keras: {file} has SHA-256" in run.log(1)
    assert "was given" in run.log(1)


def parts(run: Path, worker: int) -> list[Path]:
    """What a worker's reduction had not sent, oldest first."""
    return sorted((run / f"workers/worker{worker}/memory").glob("*.npz"))


def test_a_workers_lost_part_is_replaced_or_missed(project, grown):
    """The control node's copy replaces a damaged part; the loss of one that is missing there, too, is reported and kept in the result."""
    flip_a_bit(parts(project.node(2, "grown"), 2)[-1])
    for run in (project.node(1, "grown"), project.run("grown")):
        shutil.rmtree(parts(run, 1)[0].parent)
    shown = project.play("train", "run=grown", "epochs=3", "preflight=false").stdout
    assert "worker2's part of the state of step 16 on worker2 is damaged (its digest differs) and put aside" in shown
    reason = "what the reduction had not sent at step 16 started anew (missing or damaged on rank 0)"
    assert f"worker1: {reason}: the weights will differ a little" in shown
    assert f"{reason}; the weights differ a little" in shown
    summary = project.summary("grown")
    assert (summary["exact"], summary["state"], summary["steps"]) == (False, "SUCCEEDED", 24)
    assert summary["inexact_because"] == [reason]
    assert [record["epoch"] for record in chief_records(project.run("grown")) if record["kind"] == "epoch"] == [3]


@pytest.mark.usefixtures("grown")
def test_snapshots_are_kept_as_asked_and_stored_once(project):
    """On a machine that is both control node and host. Follows the third epoch of the test before."""
    here, there = (sorted((folder / "checkpoints").iterdir()) for folder in (project.run("grown"), project.node(1, "grown")))
    assert [path.name for path in here] == [path.name for path in there] == ["epoch-0002.keras", "epoch-0003.keras"]
    assert [path.stat().st_ino for path in here] == [path.stat().st_ino for path in there]


@EXHAUSTIVE
def test_a_dataset_is_copied_once(project, pictures, tmp_path):
    """Where the control node packs elsewhere."""
    where = (f"dfs_path={tmp_path}/shared", f"control_packs={tmp_path}/packs/datasets")
    project.play("train", *given(pictures, "shared", "epochs=1", *where))
    (folder,) = (tmp_path / "shared" / "datasets").iterdir()
    before = (folder / "data-00000.pack").stat()
    project.play("train", *given(pictures, "shared-again", "epochs=1", *where))
    after = (folder / "data-00000.pack").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert len(list((tmp_path / "shared" / "code").iterdir())) == 1
