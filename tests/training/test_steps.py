"""Runs counted in steps, of a residual network: normalisation, penalties and varied images, stopped inside an epoch."""

from pathlib import Path

import numpy as np
import pytest

from control.remote.worker_files import chief_records
from tests.training.trainings import Trainings

SETTINGS = (
    "set=model.layers=8,train.global_batch=20,train.steps_per_call=2,optimizer.learning_rate=0.01,checkpoint.every_steps=3,"
    "telemetry.log_every=2,reduction.name=packed"
)
"""144 images for training: 8 steps per epoch."""


def train(trainings: Trainings, pictures: Path, name: str, steps: int, profile_every: int, *more: str) -> str:
    settings = f"{SETTINGS},train.steps={steps},telemetry.profile_every={profile_every}"
    return trainings.train(f"run={name}", "config=resnet_cifar", f"dataset={pictures}", settings, *more)


@pytest.fixture(scope="module")
def straight(trainings, pictures):
    """Fourteen steps at once, some of them profiled."""
    return train(trainings, pictures, "straight", 14, 4)


@pytest.fixture(scope="module")
def parts(trainings, pictures):
    """Seven steps, and seven more, none of them profiled."""
    return train(trainings, pictures, "parts", 7, 0), train(trainings, pictures, "parts", 14, 0)


def test_a_continued_run_ends_like_a_whole_one(trainings, straight, parts):
    """All of the training state, to the bit; and profiling a step changes nothing."""
    before, after = trainings.summary("straight"), trainings.summary("parts")
    assert (after["steps"], after["restarts"]) == (14, 1)
    assert after["weights_sha256"] == before["weights_sha256"]
    assert len(set(after["weights_sha256_by_rank"])) == 1
    kinds = [{record["kind"] for record in chief_records(trainings.run(name))} for name in ("straight", "parts")]
    assert ["split" in one for one in kinds] == [True, False]
    first, second = (dict(np.load(max((trainings.run(name) / "state").glob("step-*.npz")))) for name in ("straight", "parts"))
    for key in first.keys() - {"progress"}:
        assert (first[key] == second[key]).all()


def test_rate_of_a_continued_run_counts_all_images(trainings, straight, parts):
    """An epoch of 144 images, and six steps of the next."""
    for name in ("straight", "parts"):
        seconds = sum(row["seconds"] for row in trainings.history(name))
        assert trainings.summary(name)["images_per_s"] == pytest.approx((144 + 6 * 20) / seconds, rel=0.01)


def test_states_are_saved_while_it_trains(trainings, straight):
    phases = [record for record in chief_records(trainings.run("straight")) if record["kind"] == "phase"]
    saved = ["step 3", "step 6", "epoch 1", "step 9", "step 12", "epoch 2"]
    assert [record["note"] for record in phases if record["phase"] == "saving"] == saved
    # The clock of records is not the one that training is timed by.
    begun = next(record["t"] for record in phases if record["phase"] == "training")
    last = max(record["t"] for record in phases if record["phase"] == "saving")
    summary = trainings.summary("straight")
    assert last - begun - 0.5 <= summary["seconds_training"] <= summary["seconds_total"]


def test_steps_are_logged(straight):
    assert "\nstep 2: " in straight
    assert "\nstep 14: " in straight
