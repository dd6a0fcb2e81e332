"""Runs counted in steps, of a residual network: normalisation, penalties and varied images, stopped inside an epoch."""

import csv
from pathlib import Path

import numpy as np
import pytest

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE
from trainer.records import read_history
from trainer.telemetry import chief_records

SETTINGS = (
    "set=model.layers=8,train.global_batch=20,train.steps_per_call=2,optimizer.learning_rate=0.01,checkpoint.every_steps=3,"
    "telemetry.log_every=2,reduction.name=packed"
)
"""144 images for training: 8 steps per epoch."""


def train(project: LocalProject, pictures: Path, name: str, steps: int, profile_every: int, *more: str) -> str:
    settings = f"{SETTINGS},train.steps={steps},telemetry.profile_every={profile_every}"
    given = ("config=resnet_cifar", f"dataset={pictures}", settings, "preflight=false")
    return project.play("train", f"run={name}", *given, *more).stdout


@pytest.fixture(scope="module")
def straight(project, pictures):
    """Fourteen steps at once, some of them profiled, evaluated at the end."""
    return train(project, pictures, "straight", 14, 4, "evaluate=true")


@pytest.fixture(scope="module")
def parts(project, pictures):
    """Seven steps, and seven more, none of them profiled."""
    return train(project, pictures, "parts", 7, 0), train(project, pictures, "parts", 14, 0)


def test_a_continued_run_ends_like_a_whole_one(project, straight, parts):
    """All of the training state, to the bit; and profiling a step changes nothing."""
    assert "-e set=train.steps=14" in parts[0]
    assert "Evaluate" not in parts[0]
    assert "parts: SUCCEEDED" in parts[1]
    before, after = project.summary("straight"), project.summary("parts")
    assert (after["steps"], after["restarts"]) == (14, 1)
    assert after["weights_sha256"] == before["weights_sha256"]
    assert len(set(after["weights_sha256_by_rank"])) == 1
    kinds = [{record["kind"] for record in chief_records(project.run(name))} for name in ("straight", "parts")]
    assert ["split" in one for one in kinds] == [True, False]
    first, second = (dict(np.load(max((project.run(name) / "state").glob("step-*.npz")))) for name in ("straight", "parts"))
    for key in first.keys() - {"progress"}:
        assert (first[key] == second[key]).all()


def test_rate_of_a_continued_run_counts_all_images(project, straight, parts):
    """An epoch of 144 images, and six steps of the next."""
    for name in ("straight", "parts"):
        seconds = sum(row["seconds"] for row in read_history(project.run(name) / "history.csv"))
        assert project.summary(name)["images_per_s"] == pytest.approx((144 + 6 * 20) / seconds, rel=0.01)


def test_states_are_saved_while_it_trains(project, straight):
    phases = [record for record in chief_records(project.run("straight")) if record["kind"] == "phase"]
    saved = ["step 3", "step 6", "epoch 1", "step 9", "step 12", "epoch 2"]
    assert [record["note"] for record in phases if record["phase"] == "saving"] == saved
    # The clock of records is not the one that training is timed by.
    begun = next(record["t"] for record in phases if record["phase"] == "training")
    last = max(record["t"] for record in phases if record["phase"] == "saving")
    summary = project.summary("straight")
    assert last - begun - 0.5 <= summary["seconds_training"] <= summary["seconds_total"]


def test_steps_are_logged_and_the_end_is_evaluated(project, straight):
    log = (project.run("straight") / "workers" / "worker1" / "worker.log").read_text()
    assert "\nstep 2: " in log
    assert "\nstep 14: " in log
    assert "--- Evaluate on the chief" in straight
    assert "straight on its test images" in straight
    with (project.run("straight") / "evaluations.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    assert (row["epoch"], row["split"], row["images"]) == ("2", "test", "60")


@EXHAUSTIVE
def test_a_complete_run_is_evaluated_again_when_asked(project, pictures, straight):
    again = train(project, pictures, "straight", 14, 4, "evaluate=true")
    assert "Nothing to do: 2 epochs are done already." in again
    assert "straight on its test images" in again
