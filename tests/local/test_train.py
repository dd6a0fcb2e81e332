"""Train, resume, evaluate: whole runs of several workers through the playbooks."""

import re

import pytest

from tests.local_project import LocalProject

SMALL = "set=train.global_batch=20,train.steps_per_call=2,optimizer.learning_rate=0.005,telemetry.profile_every=3,reduction.name=packed"


def train(project: LocalProject, pictures, name: str, *more: str, **options):
    return project.play("train", f"run={name}", "config=task_cnn", f"dataset={pictures}", SMALL, *more, **options)


@pytest.fixture(scope="module")
def whole(project, pictures):
    """Four epochs without interruption on two workers."""
    return train(project, pictures, "whole", "epochs=4")


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


def test_new_run_does_not_take_over_the_state_of_a_forgotten_one(project, pictures, whole):
    import shutil

    train(project, pictures, "forgotten", "epochs=1")
    shutil.rmtree(project.run("forgotten"))
    done = train(project, pictures, "forgotten", "epochs=2", check=False)
    assert done.returncode != 0
    assert "worker1, worker2: the training state of an older run=forgotten is in runs/forgotten under worker_root" in done.stdout


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


def test_evaluate_refuses_an_epoch_that_is_not_there(project, whole):
    done = project.play("evaluate", "run=whole", "epoch=12", check=False)
    assert done.returncode != 0
    assert "epoch=12: run whole has no such snapshot; there are: 1-4" in done.stdout


def test_predict_refuses_what_is_no_image(project, tmp_path, whole):
    file = tmp_path / "letter.txt"
    file.write_text("no image")
    done = project.play("evaluate", "run=whole", f"image={file}", check=False)
    assert done.returncode != 0
    assert "can't be read: not a JPEG, PNG, BMP or GIF" in done.stdout


def test_status_and_logs_of_a_finished_run(project, whole):
    status = project.play("status", "run=whole")
    assert "whole: SUCCEEDED" in status.stdout
    assert status.stdout.count(" done ") == 2
    assert "A step in milliseconds (median of the profiled steps)" in status.stdout
    assert "forward/backward" in status.stdout
    logs = project.play("logs", "run=whole", "lines=3")
    assert "worker2: last 3 lines" in logs.stdout
    assert re.search(r"epoch \d+/\d+ done  loss ", logs.stdout)
