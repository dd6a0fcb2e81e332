"""Compressed gradients through the playbooks: equal weights, and nothing lost when a run is broken off."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from tests.local.test_train import rows
from tests.project import EXHAUSTIVE, await_until
from tests.unit.samples import flip_a_bit

SMALL = "train.global_batch=20,train.steps_per_call=2,optimizer.learning_rate=0.005,telemetry.profile_every=7"
POWERSGD = "reduction.name=powersgd,reduction.rank=2,reduction.warmup_steps=5,checkpoint.every_steps=10"


def train(project, pictures, name, *more, reduction=POWERSGD, **options):
    """On the pictures an epoch has 8 steps."""
    settings = f"set={SMALL},{reduction}"
    return project.play("train", f"run={name}", "config=task_cnn", f"dataset={pictures}", settings, *more, **options)


@pytest.fixture(scope="module")
def straight(project, pictures):
    """200 steps on three workers without interruption."""
    return train(project, pictures, "squeezed", "epochs=25", "workers=3")


def memory(project, name, worker):
    """Files of what a worker's reduction remembered, as collected."""
    return sorted((project.run(name) / "workers" / f"worker{worker}" / "memory").glob("*.npz"))


def test_after_200_compressed_steps_all_workers_have_the_same_weights(project, straight):
    summary = project.summary("squeezed")
    assert (summary["steps"], summary["state"]) == (200, "SUCCEEDED")
    assert len(summary["weights_sha256_by_rank"]) == 3
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    assert rows(project, "squeezed")[-1]["loss"] < rows(project, "squeezed")[0]["loss"]


def test_each_worker_keeps_what_it_has_not_sent(project, straight):
    files = [memory(project, "squeezed", worker) for worker in (1, 2, 3)]
    assert [[path.name for path in states] for states in files] == [["step-000000192.npz", "step-000000200.npz"]] * 3
    errors, attempts = [], set()
    for states in files:
        with np.load(states[-1]) as stored:
            attempt, workers, shapes = json.loads(str(stored["about"]))
            assert (workers, shapes) == (3, [list(stored[name].shape) for name in sorted(stored.files) if name.isdecimal()])
            attempts.add(attempt)
            errors.append(stored["0000"])
    assert len(attempts) == 1
    assert errors[0].shape == (28800, 128)
    assert np.abs(errors[0]).max() > 0
    assert np.abs(errors[0] - errors[1]).max() > 0


def test_one_step_is_taken_apart_with_its_compression(project, straight):
    log = (project.run("squeezed") / "workers" / "worker2" / "metrics.jsonl").read_text()
    samples = [line for line in log.splitlines() if '"kind": "split"' in line]
    assert len(samples) == 28
    assert all('"compression": 0.0,' not in line and '"all_reduce": 0.0,' not in line for line in samples)


@EXHAUSTIVE
def test_killed_then_stopped_and_every_disk_lost_it_ends_with_the_same_weights(project, pictures, straight):
    train(project, pictures, "broken", "epochs=25", "workers=3", "detach=true")
    await_until(lambda: project.steps(1, "broken") >= 30, 90, "thirty steps")
    os.kill(project.trainer_pid(2, "broken"), signal.SIGKILL)
    # The others still wait for it, or have just ended.
    project.play("train", "run=broken", "detach=true")
    await_until(lambda: project.steps(1, "broken") >= 90, 90, "ninety steps")
    project.play("stop", "run=broken")
    assert 90 <= project.summary("broken")["steps"] < 200
    assert project.summary("broken")["restarts"] == 1
    for worker in (1, 2, 3):
        shutil.rmtree(project.node(worker, "broken"))
    project.play("train", "run=broken")
    assert project.summary("broken")["restarts"] == 2
    assert project.summary("broken")["weights_sha256"] == project.summary("squeezed")["weights_sha256"]


@EXHAUSTIVE
def test_on_another_number_of_workers_the_memory_starts_anew_and_the_run_goes_on(project, pictures, straight):
    train(project, pictures, "fewer", "epochs=2", "workers=3")
    project.play("train", "run=fewer", "epochs=3", "workers=2")
    assert "started anew (3 workers saved it, 2 go on)" in (project.run("fewer") / "workers" / "worker1" / "worker.log").read_text()
    summary = project.summary("fewer")
    assert (summary["steps"], summary["workers"], len(set(summary["weights_sha256_by_rank"]))) == (24, 2, 1)
    # The third is back, with what it had not sent two epochs ago: what the others have trained since is not trained again.
    project.play("train", "run=fewer", "epochs=4", "workers=3")
    chief = project.run("fewer") / "workers" / "worker1"
    assert (chief / "worker.log").read_text().count("started anew") == 2
    records = map(json.loads, (chief / "metrics.jsonl").read_text().splitlines())
    assert [record["epoch"] for record in records if record["kind"] == "epoch"] == [4]


@pytest.mark.parametrize(
    "reduction",
    [
        pytest.param("reduction.name=packed,reduction.transport=tensorflow", marks=EXHAUSTIVE),
        pytest.param("reduction.name=half", marks=EXHAUSTIVE),
        pytest.param("reduction.name=half,reduction.dtype=float16,reduction.transport=tensorflow", marks=EXHAUSTIVE),
        "reduction.name=powersgd,reduction.transport=tensorflow",
        "train.precision=mixed_bfloat16,reduction.name=packed",
    ],
)
def test_other_ways_to_send_end_alike(project, pictures, reduction):
    name = "way-" + "-".join(part.partition("=")[2] for part in reduction.split(","))
    train(project, pictures, name, "epochs=3", "workers=2", reduction=reduction)
    if not project.run("way-plain").exists():
        train(project, pictures, "way-plain", "epochs=3", "workers=2", reduction="reduction.name=packed")
    assert len(set(project.summary(name)["weights_sha256_by_rank"])) == 1
    # BFloat16's products have 8 bits; of a loss that has fallen to a five-hundredth, few of them are left.
    tolerance = 0.25 if "powersgd" in reduction else 0.1 if "bfloat16" in reduction else 0.02
    for mine, theirs in zip(rows(project, name), rows(project, "way-plain"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=tolerance)


def test_what_a_worker_lost_is_told_at_once_and_stays_in_the_result(project, pictures, straight):
    whole = train(project, pictures, "forgetful", "epochs=2", "workers=2")
    assert project.summary("forgetful")["exact"] is True
    assert "not exact" not in whole.stdout
    shutil.rmtree(project.node(2, "forgetful") / "workers" / "worker2" / "memory")
    shutil.rmtree(project.run("forgetful") / "workers" / "worker2" / "memory")
    resumed = project.play("train", "run=forgetful", "epochs=3")
    reason = "what the reduction had not sent at step 16 started anew (missing or damaged on rank 1)"
    assert f"worker1: {reason}: the weights will differ a little" in resumed.stdout
    assert f"not exact   {reason}; the weights differ a little" in resumed.stdout
    summary = project.summary("forgetful")
    assert (summary["exact"], summary["inexact_because"], summary["state"]) == (False, [reason], "SUCCEEDED")
    again = project.play("train", "run=forgetful", "epochs=4")
    assert f"worker1: {reason}" not in again.stdout
    assert project.summary("forgetful")["inexact_because"] == [reason]


@EXHAUSTIVE
def test_a_damaged_part_of_a_worker_is_taken_from_the_copy_here(project, pictures, straight):
    train(project, pictures, "gnawed", "epochs=24", "workers=3")
    flip_a_bit(sorted((project.node(2, "gnawed") / "workers/worker2/memory").glob("*.npz"))[-1])
    resumed = project.play("train", "run=gnawed", "epochs=25")
    assert "worker2's part of the state of step 192 on worker2 is damaged (its digest differs) and put aside" in resumed.stdout
    assert project.summary("gnawed")["exact"] is True
    assert project.summary("gnawed")["weights_sha256"] == project.summary("squeezed")["weights_sha256"]
