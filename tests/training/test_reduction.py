"""Compressed gradients: equal weights, and nothing lost when workers are killed and stopped."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from control.remote.worker_files import read_records
from tests.project import EXHAUSTIVE
from tests.training.compressed import MARKS, SIGNALS
from tests.training.trainings import Trainings

FILE = Path(__file__).with_name("compressed.py")
STEPS = "train.global_batch=16,train.steps_per_call=2,checkpoint.every_steps=5,telemetry.profile_every=7"
POWERSGD = "reduction.name=powersgd,reduction.rank=2,reduction.warmup_steps=5,reduction.min_elements=1000"


def train(trainings: Trainings, name: str, *more: str, reduction: str = POWERSGD) -> str:
    """Four epochs of 10 steps on two workers."""
    given = (f"run={name}", f"model={FILE}:build", f"dataset={FILE}:data", "epochs=4")
    return trainings.train(*given, f"set={STEPS},{reduction}", *more)


def disturbed(trainings: Trainings, name: str, marks: Path) -> str:
    """A run with the callbacks that send rank 1 a signal after some steps, unless a file in `marks` says that it was sent."""
    return train(trainings, name, f"callbacks={FILE}:signals", reduction=f"{POWERSGD},train.environment.{MARKS}={marks}")


@pytest.fixture(scope="module")
def straight(trainings, tmp_path_factory):
    """40 steps without interruption."""
    marks = tmp_path_factory.mktemp("sent")
    for step in SIGNALS:
        (marks / str(step)).touch()
    return disturbed(trainings, "straight", marks)


def test_compressed_steps_end_with_equal_weights(trainings, straight):
    summary = trainings.summary("straight")
    assert (summary["steps"], summary["state"]) == (40, "SUCCEEDED")
    assert len(summary["weights_sha256_by_rank"]) == 2
    assert len(set(summary["weights_sha256_by_rank"])) == 1
    assert trainings.history("straight")[-1]["loss"] < trainings.history("straight")[0]["loss"]


def test_each_worker_keeps_what_it_has_not_sent(trainings, straight):
    errors, attempts = [], set()
    for worker in ("worker1", "worker2"):
        states = sorted((trainings.run("straight") / "workers" / worker / "memory").glob("*.npz"))
        assert [path.name for path in states] == ["step-000000035.npz", "step-000000040.npz"]
        with np.load(states[-1]) as stored:
            attempt, workers, shapes = json.loads(str(stored["about"]))
            assert (workers, shapes) == (2, [list(stored[name].shape) for name in sorted(stored.files) if name.isdecimal()])
            attempts.add(attempt)
            errors.append(stored["0000"])
    assert len(attempts) == 1
    assert errors[0].shape == (64, 64)
    assert np.abs(errors[0]).max() > 0
    assert np.abs(errors[0] - errors[1]).max() > 0


def test_compression_is_part_of_a_profiled_step(trainings, straight):
    records = read_records(trainings.run("straight") / "workers" / "worker2" / "metrics.jsonl")
    profiled = [record for record in records if record["kind"] == "split"]
    assert profiled
    assert all(record["compression"] > 0 and record["all_reduce"] > 0 for record in profiled)


def test_a_killed_and_a_preempted_worker_change_nothing(trainings, tmp_path, straight):
    """Real supervisors start all workers again, inside an epoch, with what each had not sent: from the newest state, then from its own."""
    log = disturbed(trainings, "disturbed", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(str, SIGNALS))
    again = "all workers start again from the last saved state"
    assert re.search(rf"rank 1 \(worker2\) was killed by SIGKILL at step \d+; {again} \(restart 1 of this launch\)", log), log
    assert re.search(rf"ended because a worker was sent SIGTERM, at step \d+; {again} \(restart 2 of this launch\)", log), log
    summary = trainings.summary("disturbed")
    assert (summary["state"], summary["restarts"], summary["exact"]) == ("SUCCEEDED", 2, True)
    assert summary["weights_sha256"] == trainings.summary("straight")["weights_sha256"]


@EXHAUSTIVE
@pytest.mark.parametrize(
    ("reduction", "tolerance"),
    [
        ("reduction.name=packed,reduction.transport=tensorflow", 0.02),
        ("reduction.name=half", 0.02),
        ("reduction.name=half,reduction.dtype=float16,reduction.transport=tensorflow", 0.02),
        (f"{POWERSGD},reduction.transport=tensorflow", 0.25),
    ],
)
def test_other_ways_to_send_end_alike(trainings, reduction, tolerance):
    """Compared with gradients sent as they are, on the direct transport."""
    name = "way-" + "-".join(part.partition("=")[2] for part in reduction.split(","))
    train(trainings, name, reduction=reduction)
    if not trainings.run("plain").exists():
        train(trainings, "plain", reduction="reduction.name=packed")
    assert len(set(trainings.summary(name)["weights_sha256_by_rank"])) == 1
    for mine, theirs in zip(trainings.history(name), trainings.history("plain"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=tolerance)


@EXHAUSTIVE
def test_mixed_precision_ends_alike(trainings, pictures):
    """BFloat16's products have 8 bits; of a loss that has fallen to a five-hundredth, few of them are left."""
    for name, precision in (("precise", "float32"), ("mixed", "mixed_bfloat16")):
        settings = f"set=train.global_batch=20,train.steps_per_call=2,optimizer.learning_rate=0.005,train.precision={precision}"
        given = ("config=task_cnn", f"dataset={pictures}", f"{settings},reduction.name=packed", "epochs=3")
        trainings.train(f"run={name}", *given)
    assert len(set(trainings.summary("mixed")["weights_sha256_by_rank"])) == 1
    for mine, theirs in zip(trainings.history("mixed"), trainings.history("precise"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.1)
