"""A built-in network on images: what a run leaves, equal weights, any number of workers, evaluation."""

import csv
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from control.remote.worker_files import read_records
from tests.local_project import LocalProject
from tests.pictures import CLASSES
from tests.project import EXHAUSTIVE
from tests.training.trainings import Trainings

SETTINGS = (
    "set=train.global_batch=20,train.steps_per_call=2,optimizer.learning_rate=0.005,telemetry.profile_every=3,reduction.name=packed,"
    "data.image_size=[16,16,3]"
)
"""144 images for training: 7.2 steps of 20 per epoch."""
EPOCHS, STEPS = 3, 24


def options(pictures: Path, name: str, *more: str, settings: str = "") -> tuple[str, ...]:
    return f"run={name}", "config=task_cnn", f"dataset={pictures}", f"{SETTINGS}{settings and f',{settings}'}", *more


def train(trainings: Trainings, pictures: Path, name: str, *more: str, settings: str = "", workers: int = 2) -> str:
    return trainings.train(*options(pictures, name, *more, settings=settings), codes=(0,) * workers)


@pytest.fixture(scope="module")
def whole(project, pictures):
    """Three epochs on two workers."""
    return project.play("train", *options(pictures, "whole", f"epochs={EPOCHS}")).stdout


def test_run_directory_is_complete(project, whole):
    run = project.run("whole")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [f"epoch-{epoch:04d}.keras" for epoch in (1, 2, 3)]
    assert len(list((run / "state").glob("step-*.npz"))) == 2
    for split in ("train", "validation"):
        assert list((run / "logs" / split).glob("events.out.tfevents.*"))
    for worker in ("worker1", "worker2"):
        assert (run / "workers" / worker / "worker.log").stat().st_size > 0
        assert json.loads((run / "workers" / worker / "exit.json").read_text())["exit_code"] == 0
    assert not list(run.rglob(".part-*"))


def test_it_learns_with_equal_weights_everywhere(project, whole):
    summary, rows = project.summary("whole"), project.history("whole")
    ended = {"state": "SUCCEEDED", "workers": 2, "epochs_done": EPOCHS, "steps": STEPS, "restarts": 0}
    assert ended.items() <= summary.items()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    best = max(rows, key=lambda row: (row["val_accuracy"], -row["val_loss"], -row["epoch"]))
    assert summary["best"] == {"epoch": best["epoch"], "val_accuracy": best["val_accuracy"]}
    assert len(summary["weights_sha256_by_rank"]) == 2
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    assert rows[-1]["val_accuracy"] > 0.6 > 1 / len(CLASSES)


def test_output_has_plan_epochs_and_next_commands(whole):
    assert re.search(r"model +task_cnn, [\d,]+ parameters", whole)
    expected = ("144 training, 36 validation, 60 test images", "8 per epoch x 3 epochs = 24", "\n      3/3  ", "whole: SUCCEEDED")
    expected += ("equal on all 2 workers", "ansible-playbook evaluate.yml -e run=whole -e epoch=first,best,last")
    assert [words for words in expected if words not in whole] == []
    assert "FAILED - RETRYING" not in whole


def profiled(project: LocalProject, worker: str):
    records = read_records(project.run("whole") / "workers" / worker / "metrics.jsonl")
    return [record for record in records if record["kind"] == "split"]


def test_every_third_step_is_profiled(project, whole):
    for worker in ("worker1", "worker2"):
        records = profiled(project, worker)
        assert [record["step"] for record in records] == list(range(3, STEPS + 1, 3))
        assert [record["epoch"] for record in records] == [1, 1, 2, 2, 2, 3, 3, 3]
        for record in records:
            parts = [record[phase] for phase in ("forward_backward", "compression", "all_reduce", "apply")]
            assert min(parts) > 0
            assert sum(parts) <= record["step_seconds"] - record["input"] + 1e-5
            assert record["images"] in (10, 2)


def test_tensorboard_has_the_parts_of_a_step(project, whole):
    events = EventAccumulator(str(project.run("whole") / "logs" / "train")).Reload()
    for phase in ("input", "forward_backward", "compression", "all_reduce", "apply"):
        scalars = events.Tensors(f"split/{phase}")
        assert [scalar.step for scalar in scalars] == [1, 2, 3]
        milliseconds = [record[phase] * 1000 for record in profiled(project, "worker1") if record["epoch"] == 1]
        assert make_ndarray(scalars[0].tensor_proto) == pytest.approx(sum(milliseconds) / len(milliseconds), abs=0.001)


def assert_loss_of_whole(trainings: Trainings, name: str, project: LocalProject, workers: int):
    summary = trainings.summary(name)
    assert summary["workers"] == len(summary["weights_sha256_by_rank"]) == workers
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    for mine, theirs in zip(trainings.history(name), project.history("whole"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=2e-3)
        assert mine["val_loss"] == pytest.approx(theirs["val_loss"], rel=2e-3)


def test_three_uneven_workers_have_the_same_loss(project, trainings, pictures, whole):
    """The loss depends neither on the number of workers nor on their shares of a step."""
    train(trainings, pictures, "uneven", f"epochs={EPOCHS}", workers=3, settings="train.batch_sizes=[10,7,3]")
    assert trainings.summary("uneven")["shares"] == [10, 7, 3]
    assert_loss_of_whole(trainings, "uneven", project, 3)


@EXHAUSTIVE
@pytest.mark.parametrize(("workers", "settings"), [(1, ""), (3, ""), (5, ""), (2, "train.batch_sizes=auto")])
def test_other_divisions_have_the_same_loss(project, trainings, pictures, whole, workers, settings):
    name = f"divided-{workers}-{bool(settings)}".lower()
    train(trainings, pictures, name, f"epochs={EPOCHS}", workers=workers, settings=settings)
    assert_loss_of_whole(trainings, name, project, workers)


def test_evaluation_has_rows_and_matrices(project, whole):
    """In the order of the epochs asked for."""
    shown = project.play("evaluate", "run=whole", "epoch=3,1").stdout
    with (project.run("whole") / "evaluations.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["epoch"], row["images"]) for row in rows] == [("3", "60"), ("1", "60")]
    assert float(rows[0]["loss"]) < float(rows[1]["loss"])
    assert (project.run("whole") / "evaluations" / "confusion-epoch-0003.png").stat().st_size > 5000
    assert "Käse" in shown
    matrix = json.loads((project.run("whole") / "evaluate" / "epoch-0003.json").read_text())["outputs"][0]["confusion"]
    assert [sum(row) for row in matrix] == [20, 20, 20]
    assert sum(matrix[number][number] for number in range(3)) / 60 == pytest.approx(float(rows[0]["accuracy"]), abs=1e-4)


@EXHAUSTIVE
def test_a_folder_of_images_is_predicted_by_name(project, pictures, tmp_path, whole):
    project.play("evaluate", "run=whole", "epoch=3")
    project.play("predict", "run=whole", "epoch=3", f"input={pictures}/test", f"output={tmp_path}/classes.csv", "workers=1")
    with (tmp_path / "classes.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["file"] for row in rows] == sorted(str(path.relative_to(pictures / "test")) for path in (pictures / "test").rglob("*.*"))
    right = [row["class"] == row["file"].partition("/")[0] for row in rows]
    matrix = json.loads((project.run("whole") / "evaluate" / "epoch-0003.json").read_text())["outputs"][0]["confusion"]
    assert sum(right) == sum(matrix[number][number] for number in range(3))


@EXHAUSTIVE
def test_a_complete_run_is_evaluated_again_when_asked(project, pictures, whole):
    again = project.play("train", *options(pictures, "whole", f"epochs={EPOCHS}", "evaluate=true")).stdout
    assert "Nothing to do: 3 epochs are done already." in again
    assert "whole on its test images" in again


@EXHAUSTIVE
def test_evaluate_names_three_classes_of_an_image(project, pictures, whole):
    image = pictures / "test" / "Käse" / "bild 1.png"
    shown = project.play("evaluate", "run=whole", json.dumps({"image": str(image)})).stdout
    lines = shown[shown.index("by whole, epoch") :].splitlines()
    assert sorted(line.rsplit(maxsplit=1)[0].strip() for line in lines[2:5]) == sorted(CLASSES)
    assert lines[2].strip().startswith("Käse")


def weights(path: Path):
    return keras.saving.load_model(path, compile=False).get_weights()


def test_only_the_last_layer_trains_on(trainings, project, pictures, whole):
    """From the weights of another run; that a command brings these to all hosts: tests/contract/test_continuing.py."""
    snapshot = project.run("whole") / "checkpoints" / "epoch-0003.keras"
    train(trainings, pictures, "head", f"weights={snapshot}", settings="train.last_layers=1,train.steps=2")
    before, after = weights(snapshot), weights(trainings.run("head") / "checkpoints" / "epoch-0001.keras")
    assert [np.array_equal(one, other) for one, other in zip(before, after, strict=True)] == [True] * (len(before) - 2) + [False] * 2


@EXHAUSTIVE
def test_patience_counts_across_launches(project, pictures):
    """It ends a run at the same epoch when it is continued, and more of it goes on."""

    def patient(run: str, patience: int, epochs: int) -> str:
        return project.play("train", *options(pictures, run, f"epochs={epochs}", settings=f"train.patience={patience}")).stdout

    shown = patient("patient", 2, 40)
    summary = project.summary("patient")
    best, done = summary["best"]["epoch"], summary["epochs_done"]
    assert done == best + 2 < 40
    assert f"ended early  none since epoch {best} was better (train.patience), after {done} epochs of 40" in shown
    assert "train longer" not in shown
    assert "Nothing to do" in patient("patient", 2, 40)
    patient("patient-parts", 2, done - 1)
    patient("patient-parts", 2, 40)
    assert project.summary("patient-parts")["weights_sha256"] == summary["weights_sha256"]
    patient("patient", 4, 40)
    later = project.summary("patient")
    assert later["epochs_done"] == later["best"]["epoch"] + 4 > done


@EXHAUSTIVE
def test_a_keras_optimizers_state_is_resumed(trainings, pictures):
    """Such as the number of its steps."""

    def nadam(name: str, steps: int) -> str:
        train(trainings, pictures, name, settings=f"optimizer.name=nadam,train.steps={steps}")
        return trainings.summary(name)["weights_sha256"]

    whole, half = nadam("at-once", 12), nadam("in-two", 5)
    assert half != whole
    assert nadam("in-two", 12) == whole
    assert trainings.summary("in-two")["restarts"] == 1


@EXHAUSTIVE
def test_draws_follow_from_the_step(trainings, pictures):
    """Dropout and Adam: a run of two workers that is continued ends like one that was not."""
    given = ("config=fashion_cnn", f"dataset={pictures}")
    settings = "set=train.global_batch=20,train.steps_per_call=3,data.validation_split=0.2,reduction.name=packed,train.steps="
    for name, targets in (("dropped", (9,)), ("dropped-twice", (4, 9))):
        for steps in targets:
            trainings.train(f"run={name}", *given, f"{settings}{steps}")
    ends = [trainings.summary(name)["weights_sha256"] for name in ("dropped", "dropped-twice")]
    assert ends[0] == ends[1]
