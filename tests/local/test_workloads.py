"""The course workloads through the playbooks: runs in steps, networks that keep means and draw numbers, runs listed and deleted."""

import io
import json
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE

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


def test_the_whole_configuration_is_shown_and_nothing_is_done(project):
    shown = project.play("train", "run=shown", "config=resnet_small", "set=schedule.scaling=sqrt", "show_config=true")
    assert "scaling: sqrt" in shown.stdout
    assert "profile_every: 50" in shown.stdout
    assert "--- Launch" not in shown.stdout
    assert not project.run("shown").exists()


def test_a_run_is_listed_and_deleted_but_not_while_it_is_under_way(project, pictures, straight):
    train(project, pictures, "listed", 2)
    listed = project.play("status", "run=job-straight").stdout
    (line,) = [line for line in listed.splitlines() if line.strip().startswith("listed ")]
    assert line.split()[1] == "SUCCEEDED"
    train(project, pictures, "going", 100_000, "detach=true")
    try:
        refused = project.play("playbooks/delete_run", "run=going", check=False)
        assert "run=going is under way on worker1, worker2; stop it first" in refused.stdout
        assert project.run("going").is_dir()
    finally:
        project.play("stop", "run=going")
    assert "would be deleted" in project.play("playbooks/delete_run", "run=listed", "--check").stdout
    assert project.node(2, "listed").is_dir()
    for name in ("listed", "going"):
        assert f"{name}: deleted" in project.play("playbooks/delete_run", f"run={name}").stdout
        assert not project.run(name).exists()
        assert not project.node(1, name).exists()
        assert not project.node(2, name).exists()
    assert "run: missing; say which with -e run=NAME" in project.play("playbooks/delete_run", check=False).stdout


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
