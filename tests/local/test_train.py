"""Train, resume, evaluate: whole runs of several workers through the playbooks."""

import csv
import json
import re

import keras
import numpy as np
import pytest

from tests.local_project import CLASSES, LocalProject
from tests.project import EXHAUSTIVE, await_until

SMALL = "set=train.global_batch=20,train.steps_per_call=2,optimizer.learning_rate=0.005,telemetry.profile_every=3,reduction.name=packed"


def rows(project: LocalProject, name: str) -> list[dict[str, float]]:
    with (project.run(name) / "history.csv").open() as stream:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(stream)]


def train(project: LocalProject, pictures, name: str, *more: str, **options):
    return project.play("train", f"run={name}", "config=task_cnn", f"dataset={pictures}", SMALL, *more, **options)


@pytest.fixture(scope="module")
def whole(project, pictures):
    """Four epochs without interruption on two workers."""
    return train(project, pictures, "whole", "epochs=4")


def test_run_directory_holds_what_the_contract_says(project, whole):
    run = project.run("whole")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [f"epoch-{epoch:04d}.keras" for epoch in (1, 2, 3, 4)]
    assert {path.name for path in run.iterdir()} >= {
        "config.yml",
        "cluster.json",
        "history.csv",
        "summary.json",
        "state",
        "logs",
        "workers",
    }
    assert len(list((run / "state").glob("step-*.npz"))) == 2
    for split in ("train", "validation"):
        assert list((run / "logs" / split).glob("events.out.tfevents.*"))
    for worker in ("worker1", "worker2"):
        assert {path.name for path in (run / "workers" / worker).iterdir()} >= {"worker.log", "metrics.jsonl", "exit.json"}
        assert json.loads((run / "workers" / worker / "exit.json").read_text())["exit_code"] == 0
    assert not list(run.rglob(".part-*"))


def test_summary_and_history_agree_and_weights_are_equal_on_all_workers(project, whole):
    summary, history = project.summary("whole"), rows(project, "whole")
    assert summary["state"] == "SUCCEEDED"
    assert (summary["workers"], summary["epochs_done"], summary["steps"], summary["restarts"]) == (2, 4, 4 * 8, 0)
    assert [row["epoch"] for row in history] == [1, 2, 3, 4]
    best = max(history, key=lambda row: (row["val_accuracy"], -row["epoch"]))
    assert summary["best"] == {"epoch": best["epoch"], "val_accuracy": best["val_accuracy"]}
    assert len(summary["weights_sha256_by_rank"]) == 2
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    assert history[-1]["val_accuracy"] > 0.6 > 1 / len(CLASSES)


def test_output_has_plan_epochs_table_and_next_commands(whole):
    for expected in (
        "model         task_cnn, 3,687,811 parameters",
        "144 training, 36 validation, 60 test images",
        "8 per epoch x 4 epochs = 32",
        "epoch 4/4  step 32/32",
        "whole: SUCCEEDED",
        "equal on all 2 workers",
        "ansible-playbook evaluate.yml -e run=whole -e epoch=first,best,last",
    ):
        assert expected in whole.stdout
    assert "FAILED - RETRYING" not in whole.stdout


def test_same_command_again_changes_nothing(project, pictures, whole):
    before = (project.run("whole") / "summary.json").read_text()
    again = train(project, pictures, "whole", "epochs=4")
    assert "Nothing to do: 4 epochs are done already." in again.stdout
    assert "changed=0" in again.stdout
    assert "changed=1" not in again.stdout
    assert (project.run("whole") / "summary.json").read_text() == before


def samples(project: LocalProject, name: str, worker: str) -> list[dict[str, float]]:
    lines = (project.run(name) / "workers" / worker / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "split"]


def test_every_third_step_is_taken_apart_on_all_workers(project, whole):
    for worker in ("worker1", "worker2"):
        actual = samples(project, "whole", worker)
        assert [record["step"] for record in actual] == list(range(3, 33, 3))
        assert [record["epoch"] for record in actual] == [1, 1, 2, 2, 2, 3, 3, 3, 4, 4]
        for record in actual:
            parts = [record[phase] for phase in ("forward_backward", "compression", "all_reduce", "apply")]
            assert min(parts) > 0
            assert sum(parts) <= record["step_seconds"] - record["input"] + 1e-5 < 10
            assert record["images"] in (10, 2)


def test_steps_taken_apart_do_not_change_the_weights(project, pictures, whole):
    without = SMALL.replace("profile_every=3", "profile_every=0")
    project.play("train", "run=undivided", "config=task_cnn", f"dataset={pictures}", without, "epochs=4")
    assert samples(project, "undivided", "worker1") == []
    assert project.summary("undivided")["weights_sha256"] == project.summary("whole")["weights_sha256"]
    assert [row["loss"] for row in rows(project, "undivided")] == [row["loss"] for row in rows(project, "whole")]


def test_tensorboard_has_the_phases_of_a_step(project, whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(project.run("whole") / "logs" / "train")).Reload()
    for phase in ("input", "forward_backward", "compression", "all_reduce", "apply"):
        scalars = events.Tensors(f"split/{phase}")
        assert [scalar.step for scalar in scalars] == [1, 2, 3, 4]
        of_chief = [record[phase] * 1000 for record in samples(project, "whole", "worker1") if record["epoch"] == 1]
        assert make_ndarray(scalars[0].tensor_proto) == pytest.approx(sum(of_chief) / len(of_chief), abs=0.001)


@EXHAUSTIVE
def test_more_epochs_continue_to_the_same_weights(project, pictures, whole):
    train(project, pictures, "grown", "epochs=2")
    assert project.summary("grown")["epochs_done"] == 2
    project.play("train", "run=grown", "epochs=4")
    assert project.summary("grown")["restarts"] == 1
    assert project.summary("grown")["weights_sha256"] == project.summary("whole")["weights_sha256"]
    assert [row["loss"] for row in rows(project, "grown")] == [row["loss"] for row in rows(project, "whole")]


@EXHAUSTIVE
def test_an_optimizer_of_keras_continues_to_the_same_weights(project, pictures):
    """Its state, such as the number of its steps, is part of the training state."""

    def nadam(name, steps):
        train(project, pictures, name, f"set=optimizer.name=nadam,train.batch_size=10,train.steps={steps}")
        return project.summary(name)["weights_sha256"]

    whole, half = nadam("at-once", 12), nadam("in-two", 5)
    assert half != whole
    assert nadam("in-two", 12) == whole
    assert project.summary("in-two")["restarts"] == 1


@EXHAUSTIVE  # with compression: test_reduction.py
def test_stopped_inside_an_epoch_and_continued_ends_with_the_same_weights(project, pictures):
    more = ("epochs=30",)
    train(project, pictures, "straight", *more)
    train(project, pictures, "stopped", *more, "detach=true")
    await_until(lambda: project.steps(1, "stopped") >= 10, 60, "ten steps")
    stopped = project.play("stop", "run=stopped")
    assert "stopped: CANCELLED" in stopped.stdout
    steps = project.summary("stopped")["steps"]
    assert 10 <= steps < 240
    assert project.summary("stopped")["state"] == "CANCELLED"
    exits = [
        json.loads((project.run("stopped") / "workers" / worker / "exit.json").read_text())["exit_code"]
        for worker in ("worker1", "worker2")
    ]
    assert exits == [42, 42]
    project.play("train", "run=stopped")
    assert project.summary("stopped")["weights_sha256"] == project.summary("straight")["weights_sha256"]
    assert rows(project, "stopped")[-1]["val_loss"] == rows(project, "straight")[-1]["val_loss"]


@EXHAUSTIVE
def test_continues_from_the_control_node_when_the_chief_lost_its_disk(project, pictures, whole):
    import shutil

    train(project, pictures, "moved", "epochs=2")
    for worker in (1, 2):
        shutil.rmtree(project.node(worker, "moved"))
    project.play("train", "run=moved", "epochs=4")
    assert project.summary("moved")["weights_sha256"] == project.summary("whole")["weights_sha256"]
    assert [row["epoch"] for row in rows(project, "moved")] == [1, 2, 3, 4]


@pytest.mark.parametrize("workers", [1, 3, pytest.param(5, marks=EXHAUSTIVE)])
def test_loss_curve_does_not_depend_on_the_number_of_workers(project, pictures, whole, workers):
    name = f"with-{workers}"
    train(project, pictures, name, "epochs=4", f"workers={workers}")
    summary = project.summary(name)
    assert summary["workers"] == len(summary["weights_sha256_by_rank"]) == workers
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    for mine, theirs in zip(rows(project, name), rows(project, "whole"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=2e-3)
        assert mine["val_loss"] == pytest.approx(theirs["val_loss"], rel=2e-3)


@pytest.mark.parametrize("sizes", ["[14,6]", pytest.param("auto", marks=EXHAUSTIVE)])
def test_uneven_batches_give_the_same_loss_curve(project, pictures, whole, sizes):
    name = f"uneven-{sizes[0].strip('[')}"
    done = project.play(
        "train", f"run={name}", "config=task_cnn", f"dataset={pictures}", f"{SMALL},train.batch_sizes={sizes}", "epochs=4", "workers=2"
    )
    summary = project.summary(name)
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    if sizes != "auto":
        assert summary["shares"] == [14, 6]
        assert "The global batch is divided: 127.0.0.1 14, 127.0.0.1 6 images per step." in done.stdout
    for mine, theirs in zip(rows(project, name), rows(project, "whole"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=2e-3)
        assert mine["val_loss"] == pytest.approx(theirs["val_loss"], rel=2e-3)


def test_check_shows_the_plan_and_touches_nothing(project, pictures):
    before = sorted(path for path in project.root.rglob("*") if "__pycache__" not in path.parts)
    done = project.play("train", "--check", "run=planned", "config=deep_cnn", f"dataset={pictures}", "workers=3", "epochs=7")
    assert "deep_cnn" in done.stdout
    assert "worker3" in done.stdout
    assert "x 7 epochs" in done.stdout
    assert "changed=0" in done.stdout
    after = sorted(path for path in project.root.rglob("*") if "__pycache__" not in path.parts)
    assert after == before


def test_resumed_run_refuses_a_changed_key_and_a_smaller_number_of_epochs_does_nothing(project, whole):
    refused = project.play("train", "run=whole", "set=optimizer.momentum=0.5", check=False)
    assert refused.returncode != 0
    assert "this run exists with another optimizer.momentum" in refused.stdout
    fewer = project.play("train", "run=whole", "epochs=1")
    assert "Nothing to do" in fewer.stdout


def test_evaluate_appends_rows_in_the_order_asked(project, whole):
    done = project.play("evaluate", "run=whole", "epoch=4,1")
    with (project.run("whole") / "evaluations.csv").open() as stream:
        actual = list(csv.DictReader(stream))
    assert [row["epoch"] for row in actual][-2:] == ["4", "1"]
    assert actual[-1]["images"] == "60"
    assert float(actual[-2]["loss"]) < float(actual[-1]["loss"])
    assert (project.run("whole") / "evaluations" / "confusion-epoch-0004.png").stat().st_size > 5000
    assert "Käse" in done.stdout
    matrix = json.loads((project.run("whole") / "evaluate" / "epoch-0004.json").read_text())["outputs"][0]["confusion"]
    assert [sum(row) for row in matrix] == [20, 20, 20]


def numbers(history: list[dict[str, float]]) -> list[tuple[float, ...]]:
    return [tuple(row[name] for name in ("epoch", "loss", "accuracy", "val_loss", "val_accuracy")) for row in history]


def test_patience_ends_a_run_at_the_same_epoch_also_when_it_is_continued_and_more_of_it_goes_on(project, pictures):
    def patient(run: str, patience: int, *more: str) -> str:
        return train(project, pictures, run, f"{SMALL},train.patience={patience}", *more).stdout

    shown = patient("patient", 2, "epochs=40")
    summary = project.summary("patient")
    best, done = summary["best"]["epoch"], summary["epochs_done"]
    assert done == best + 2 < 40
    assert f"ended early  none since epoch {best} was better (train.patience), after {done} epochs of 40" in shown
    assert "train longer" not in shown
    assert "Nothing to do" in patient("patient", 2, "epochs=40")
    patient("patient-parts", 2, f"epochs={done - 1}")
    patient("patient-parts", 2, "epochs=40")
    assert project.summary("patient-parts")["weights_sha256"] == summary["weights_sha256"]
    patient("patient", 4, "epochs=40")
    later = project.summary("patient")
    assert later["epochs_done"] == later["best"]["epoch"] + 4 > done


def test_only_the_last_layers_train_on_from_the_weights_of_another_run(project, pictures, whole):
    snapshot = project.run("whole") / "checkpoints" / "epoch-0004.keras"
    shown = train(project, pictures, "head", "epochs=1", f"weights={snapshot}", f"{SMALL},train.last_layers=1").stdout
    assert re.search(r"model +task_cnn, 3,\d{3},\d{3} parameters, of which [\d,]+ in the last layer train, input", shown), shown
    before, after = (
        keras.saving.load_model(path, compile=False).get_weights()
        for path in (snapshot, project.run("head") / "checkpoints" / "epoch-0001.keras")
    )
    assert [np.array_equal(one, other) for one, other in zip(before, after, strict=True)] == [True] * (len(before) - 2) + [False] * 2
    fewer = train(project, pictures, "no-head", f"weights={snapshot}", f"{SMALL},train.last_layers=99", check=False)
    assert "train.last_layers=99: the model has" in fewer.stdout


@EXHAUSTIVE
def test_stop_in_the_last_call_of_an_epoch_still_records_the_epoch(project, pictures, whole):
    one_call = SMALL.replace("steps_per_call=2", "steps_per_call=8").replace("profile_every=3", "profile_every=0")
    options = (f"dataset={pictures}", "config=task_cnn", one_call)
    project.play("train", "run=edge-whole", "epochs=40", *options)
    project.play("train", "run=edge", "epochs=40", "detach=true", *options)
    project.play("stop", "run=edge")
    done = project.summary("edge")["epochs_done"]
    assert 1 <= done < 40
    assert [row["epoch"] for row in rows(project, "edge")] == list(range(1, done + 1))
    project.play("train", "run=edge")
    assert numbers(rows(project, "edge")) == numbers(rows(project, "edge-whole"))
    # Calls of 8 steps and of 2 tell the same of the same steps.
    assert numbers(rows(project, "edge-whole"))[:4] == numbers(rows(project, "whole"))
    assert project.summary("edge")["weights_sha256"] == project.summary("edge-whole")["weights_sha256"]


def test_resumed_run_refuses_a_changed_dataset(project, pictures, tmp_path, whole):
    import shutil

    copy = tmp_path / "copy of pictures"
    shutil.copytree(pictures, copy)
    train(project, copy, "altered", "epochs=1")
    (copy / "train" / "cat" / "bild 1.png").unlink()
    done = project.play("train", "run=altered", "epochs=2", check=False)
    assert done.returncode != 0
    assert "run=altered: its dataset was" in done.stdout
    assert "its examples have changed since. Fix: restore them" in done.stdout


@EXHAUSTIVE
def test_dataset_is_copied_once_where_the_control_node_packs_elsewhere(project, pictures, tmp_path):
    shared = tmp_path / "shared folder"
    where = (json.dumps({"dfs_path": str(shared), "control_packs": str(tmp_path / "packs" / "datasets")}),)
    train(project, pictures, "shared", "epochs=1", *where)
    (folder,) = (shared / "datasets").iterdir()
    before = (folder / "data-00000.pack").stat()
    train(project, pictures, "shared-again", "epochs=1", *where)
    after = (folder / "data-00000.pack").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert len(list((shared / "code").iterdir())) == 1


def test_evaluate_refuses_an_epoch_that_is_not_there(project, whole):
    done = project.play("evaluate", "run=whole", "epoch=12", check=False)
    assert done.returncode != 0
    assert "epoch=12: run whole has no such snapshot; there are: 1-4" in done.stdout


def test_predict_names_three_classes(project, pictures, whole):
    image = pictures / "test" / "Käse" / "bild 1.png"
    done = project.play("evaluate", "run=whole", json.dumps({"image": str(image)}))
    lines = done.stdout[done.stdout.index("by whole, epoch") :].splitlines()
    assert sorted(line.rsplit(maxsplit=1)[0].strip() for line in lines[2:5]) == sorted(CLASSES)
    assert lines[2].strip().startswith("Käse")


def test_a_folder_of_images_is_predicted_by_name(project, pictures, tmp_path, whole):
    project.play("predict", "run=whole", f"input={pictures}/test", f"output={tmp_path}/classes.csv", "workers=1")
    with (tmp_path / "classes.csv").open(encoding="utf-8") as stream:
        actual = list(csv.DictReader(stream))
    assert [row["file"] for row in actual] == sorted(str(path.relative_to(pictures / "test")) for path in (pictures / "test").rglob("*.*"))
    right = [row["class"] == row["file"].partition("/")[0] for row in actual]
    matrix = json.loads((project.run("whole") / "evaluate" / "epoch-0004.json").read_text())["outputs"][0]["confusion"]
    assert sum(right) == sum(matrix[number][number] for number in range(3))


def test_predict_refuses_what_is_no_image(project, tmp_path, whole):
    file = tmp_path / "letter.txt"
    file.write_text("no image")
    done = project.play("evaluate", "run=whole", f"image={file}", check=False)
    assert done.returncode != 0
    assert "can't be read: not a JPEG, PNG, BMP or GIF" in done.stdout
