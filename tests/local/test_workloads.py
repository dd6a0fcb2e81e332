"""The course workloads through the playbooks: runs in steps, networks that keep means and draw numbers, runs listed and deleted."""

import csv
import io
import json
import pickle
import shlex
import shutil
import tarfile

import numpy as np
import pytest
from PIL import Image

from tests.local.test_train import rows
from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, ROOT
from trainer.telemetry import chief_records

RESNET = (
    "set=model.layers=8,train.global_batch=20,train.steps_per_call=2,optimizer.learning_rate=0.01,checkpoint.every_steps=3,"
    "telemetry.profile_every=4,telemetry.log_every=2"
)


def train(project: LocalProject, pictures, name: str, steps: int, *more: str, **options):
    asked = ("config=resnet_cifar", f"dataset={pictures}", f"{RESNET},train.steps={steps}", "preflight=false")
    return project.play("train", f"run={name}", *asked, *more, **options)


@pytest.fixture(scope="module")
def straight(project, pictures):
    """Fourteen steps at once, evaluated at the end."""
    return train(project, pictures, "job-straight", 14, "evaluate=true")


def test_a_run_of_more_steps_continues_and_ends_like_one_that_took_them_at_once(project, pictures, straight):
    """With normalisation, penalties, varied images; stopped inside an epoch of eight steps."""
    first = train(project, pictures, "job", 7)
    assert project.summary("job")["steps"] == 7
    assert "-e set=train.steps=14" in first.stdout
    assert "Evaluate" not in first.stdout
    again = train(project, pictures, "job", 14)
    assert "job: SUCCEEDED" in again.stdout
    before, after = project.summary("job-straight"), project.summary("job")
    assert (after["steps"], after["restarts"]) == (14, 1)
    assert after["weights_sha256"] == before["weights_sha256"]
    assert len(set(after["weights_sha256_by_rank"])) == 1
    states = [dict(np.load(max((project.run(name) / "state").glob("step-*.npz")))) for name in ("job-straight", "job")]
    for key in states[0].keys() - {"progress"}:
        assert (states[0][key] == states[1][key]).all()
    for name, summary in (("job-straight", before), ("job", after)):
        # An epoch of 144 images, and six steps of the next.
        seconds = sum(row["seconds"] for row in rows(project, name))
        assert summary["images_per_s"] == pytest.approx((144 + 6 * 20) / seconds, rel=0.01)


def test_training_lasts_from_its_beginning_to_the_end_and_states_are_saved_meanwhile(project, straight):
    phases = [record for record in chief_records(project.run("job-straight")) if record["kind"] == "phase"]
    begun = next(record["t"] for record in phases if record["phase"] == "training")
    assert [record["note"] for record in phases if record["phase"] == "saving"] == [
        "step 3",
        "step 6",
        "epoch 1",
        "step 9",
        "step 12",
        "epoch 2",
    ]
    # The clock of records is not the one that training is timed by; the last record follows TensorFlow's end.
    last_save = max(record["t"] for record in phases if record["phase"] == "saving")
    assert last_save - begun - 0.5 <= project.summary("job-straight")["seconds_training"] <= phases[-1]["t"] - begun + 0.5


def test_steps_are_told_in_the_log_and_the_end_is_evaluated(project, straight):
    log = (project.run("job-straight") / "workers" / "worker1" / "worker.log").read_text()
    assert "\nstep 2: " in log
    assert "\nstep 14: " in log
    assert "--- Evaluate on the chief" in straight.stdout
    assert "job-straight on its test images" in straight.stdout
    with (project.run("job-straight") / "evaluations.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    assert (row["epoch"], row["split"], row["images"]) == ("2", "test", "60")


def test_a_complete_run_is_evaluated_when_asked_again(project, pictures, straight):
    again = train(project, pictures, "job-straight", 14, "evaluate=true")
    assert "Nothing to do: 2 epochs are done already." in again.stdout
    assert "job-straight on its test images" in again.stdout


def test_the_whole_configuration_is_shown_and_nothing_is_done(project):
    shown = project.play("train", "run=shown", "config=resnet_small", "set=schedule.scaling=sqrt", "show_config=true")
    assert "scaling: sqrt" in shown.stdout
    assert "profile_every: 50" in shown.stdout
    assert "--- Launch" not in shown.stdout
    assert not project.run("shown").exists()


@EXHAUSTIVE
def test_draws_follow_from_the_step(project, pictures):
    """Dropout and Adam: a run of two workers that is continued ends like one that was not."""
    asked = ("config=fashion_cnn", f"dataset={pictures}", "preflight=false")
    settings = "set=train.global_batch=20,train.steps_per_call=3,data.validation_split=0.2,reduction.name=packed,train.steps="
    for name, targets in (("dropped", (9,)), ("dropped-twice", (4, 9))):
        for steps in targets:
            project.play("train", f"run={name}", *asked, f"{settings}{steps}")
    ends = [project.summary(name)["weights_sha256"] for name in ("dropped", "dropped-twice")]
    assert ends[0] == ends[1]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """An archive of CIFAR-10's layout and size, which packs well: an image is of its label's brightness."""
    path = tmp_path_factory.mktemp("archive") / "cifar-10-python.tar.gz"
    labels = np.tile(np.arange(10), 1000)
    images = np.repeat((labels * 25).astype(np.uint8)[:, None], 3072, axis=1)
    data = pickle.dumps({b"data": images, b"labels": labels.tolist()}, protocol=2)
    with tarfile.open(path, "w:gz", compresslevel=1) as stream:
        for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(data)
            stream.addfile(info, io.BytesIO(data))
    return path


def test_cifar10_is_converted_and_trained_on(project, archive):
    given = ("source=cifar10", f"path={archive}")
    refused = project.play("playbooks/dataset", *given, check=False)
    assert "it is truncated or another file" in refused.stdout
    assert not (project.root / "datasets").exists()
    assert "would be written" in project.play("playbooks/dataset", *given, "digest=any", "--check").stdout
    assert not (project.root / "datasets").exists()
    made = project.play("playbooks/dataset", *given, "digest=any")
    assert "validation.tfrecords  10,000" in made.stdout
    assert "changed=0" in project.play("playbooks/dataset", *given, "digest=any").stdout
    trained = project.play(
        "train", "run=cifar10", "config=resnet_cifar", "dataset=datasets/cifar10", "set=model.layers=8,data.limit_train=1000", "quick=true"
    )
    assert "1,000 training, 10,000 validation, 10,000 test images" in trained.stdout
    assert json.loads((project.run("cifar10") / "cluster.json").read_text())["dataset"]["classes"][3] == "cat"
    assert len(set(project.summary("cifar10")["weights_sha256_by_rank"])) == 1


@pytest.mark.parametrize(
    ("number", "shown", "metric", "least"),
    [(1, "most often taken for", "accuracy", 0.9), pytest.param(2, "mine on its test examples", "mae", 0.0, marks=EXHAUSTIVE)],
)
def test_the_examples_of_the_page_about_ones_own_model_and_data_train_as_they_stand(number, shown, metric, least, project):
    page = (ROOT / "docs" / "own.md").read_text(encoding="utf-8").replace("\\\n", "")
    code, after = page.split("```python\n")[number].split("```")[:2]
    shutil.rmtree(project.run("mine"), ignore_errors=True)
    for worker in (1, 2):
        shutil.rmtree(project.node(worker, "mine"), ignore_errors=True)
    (project.root / "mine.py").write_text(code)
    commands = [line.strip() for line in after.split("\n\n")[1 if number == 2 else 2].splitlines()]
    assert len(commands) == 2
    for command in commands:
        _, playbook, *words = shlex.split(command)
        done = project.play(playbook.removesuffix(".yml"), *(word for word in words if word != "-e"))
    assert shown in done.stdout
    with (project.run("mine") / "evaluations.csv").open() as stream:
        assert least < float(next(csv.DictReader(stream))[metric]) < 1.5


@EXHAUSTIVE
def test_a_batch_is_drawn_as_it_is_and_as_training_sees_it(project, pictures):
    given = (f"dataset={pictures}", "config=resnet_cifar", "images=12")
    assert not (project.root / "pictures").exists()
    project.play("playbooks/visualize", *given, "--check")
    assert not (project.root / "pictures").exists()
    shown = project.play("playbooks/visualize", *given)
    assert "12 images of step 1, original and as training sees them" in shown.stdout
    (picture,) = (project.root / "pictures").iterdir()
    first = picture.read_bytes()
    with Image.open(picture) as image:
        assert min(image.size) > 300
    project.play("playbooks/visualize", *given)
    assert picture.read_bytes() == first
    project.play("playbooks/visualize", *given, "step=2")
    assert picture.read_bytes() != first
    assert "images=0: expected a whole number from 1" in project.play("playbooks/visualize", "images=0", check=False).stdout
