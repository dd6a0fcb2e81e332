"""What a worker records: the chief writes the run's files, every worker its own records."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from control.remote.worker_files import read_records, summary
from trainer.checkpoint.states import Progress
from trainer.common.errors import ConfigError
from trainer.config import loading
from trainer.config.schedule import Counts
from trainer.data.batch import Batch, Call
from trainer.engine.job import Job
from trainer.reduction.cost_model import Choice
from trainer.rundir.full_disk import Saver
from trainer.rundir.metrics_log import Metrics
from trainer.rundir.schemas import read_history
from trainer.rundir.straggler import Straggler
from trainer.worker.recorder import Recorder

SUMS = np.array([0.0, 10.0, 8.0, 10.0, 5.0, 10.0])
"""Stop, images, and the sums and counts of loss and accuracy."""
LOGS = {"loss": 0.8, "accuracy": 0.5}
PARTS = {"forward_backward": 0.1, "compression": 0.0, "all_reduce": 0.2, "apply": 0.1}


def recorder(folder, is_chief, log_every=0, table=None, max_restarts=0, monitor=None):
    given = {"telemetry": {"log_every": log_every, "sample_every": 1}, "recovery": {"max_restarts": max_restarts}}
    config = loading.build({**given, "train": {"steps_per_call": 2, "monitor": monitor}})
    metrics = Metrics(folder / "workers" / "a" / "metrics.jsonl")
    counts = Counts(2, 20, 5, 5, 4, 3, 12)
    job = Job(config, counts, folder, SimpleNamespace(table=table), {}, metrics, lambda: False, folder / "workers" / "a", 0.0)
    progress = Progress(step=4, metrics=SUMS[2:].tolist(), images=10.0, seconds=2.0, images_total=10.0)
    return Recorder(job, is_chief, Saver(pytest.fail, lambda: False), progress)


@pytest.mark.parametrize(
    ("actual", "one_machine", "kept"),
    [
        ([("unknown", 1), ("unknown", 1)], False, [None, 1]),
        ([("unknown", 1), ("unknown", 2), ("unknown", 2)], False, [None, None, 2]),
        ([("unknown", 1), None, ("unknown", 1)], False, [None, None, None]),
        ([("quota", 1), ("unknown", 1), ("load", 2)], False, [1, None, 2]),
        ([("unknown", 1), ("unknown", 1), ("load", 1)], True, [None, None, 1]),
    ],
    ids=["twice", "another", "not in a row", "with a cause", "workers of one machine wait for its cores"],
)
def test_straggler_without_cause_is_one_twice_in_row(actual, one_machine, kept, tmp_path):
    tested = recorder(tmp_path, is_chief=True)
    stragglers = [Straggler(one[1], one[0], 2, 1, 0, 0) if one else None for one in actual]
    confirmed = [tested._confirmed(straggler, one_machine=one_machine) for straggler in stragglers]
    assert [straggler and straggler.rank for straggler in confirmed] == kept


def test_metric_that_is_no_number_is_warned_once(tmp_path, capsys):
    """A metric that is no number is left out and warned of once.

    0/0, as a precision without positives: history.csv is read again by whoever continues.
    """
    tested = recorder(tmp_path, is_chief=True)
    for epoch in (1, 2):
        row = tested.row(epoch, {"val_loss": 0.7, "val_f1": float("nan")}, 0.01)
        assert (row["val_loss"], "val_f1" in row) == (0.7, False)
        tested.add(row)
    assert [row["epoch"] for row in read_history(tmp_path / "history.csv")] == [1, 2]
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert warning == "warning: val_f1 is nan in epoch 1: history.csv and all that compares epochs go without it"


def test_a_metric_that_nobody_computes_can_not_decide(tmp_path):
    tested = recorder(tmp_path, is_chief=True, monitor="val_f1")
    assert "val_f1" not in tested.row(1, {}, 0.01), "without a validation nothing is known"
    assert "val_f1" not in tested.row(1, {"val_f1": float("nan")}, 0.01)
    with pytest.raises(ConfigError, match=r"train.monitor=val_f1: the model computes no such metric; it has: loss, accuracy, val_loss"):
        tested.row(2, {**LOGS, "val_loss": 0.5}, 0.01)


def record_epoch(recorder):
    recorder.call(1, 2, 10.0, 2.0, 0.5, 0.01, LOGS)
    batch = Batch(None, np.ones((1, 3), np.float32), None, None, None, None)
    recorder.split(1, Call(3, 1, taken_apart=True), batch, PARTS, 0.5, 0.1)
    row = recorder.row(1, {**LOGS, "val_loss": 0.7, "val_accuracy": 0.6}, 0.01)
    recorder.events(row)
    recorder.add(row)
    recorder.epoch(row)
    return row


def test_an_epoch_of_the_chief(tmp_path, capsys):
    tested = recorder(tmp_path, is_chief=True)
    row = record_epoch(tested)
    expected = {"epoch": 1, "loss": 0.8, "accuracy": 0.5, "val_loss": 0.7, "val_accuracy": 0.6, "learning_rate": 0.01}
    assert row == {**expected, "seconds": 2.0, "images_per_s": 5.0}
    assert read_history(tmp_path / "history.csv") == [row]
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"train", "validation"}
    steps, split, epoch = read_records(tmp_path / "workers" / "a" / "metrics.jsonl")
    assert {key: steps[key] for key in ("kind", "step", "images_per_s", "metrics", "input_wait", "seconds")} == {
        "kind": "steps",
        "step": 4,
        "images_per_s": 5.0,
        "metrics": {"loss": 0.8, "accuracy": 0.5},
        "input_wait": 0.5,
        "seconds": 2.0,
    }
    assert (split["kind"], split["images"], split["all_reduce"], split["step_seconds"]) == ("split", 3, 0.2, 0.6)
    assert (epoch["kind"], epoch["val_accuracy"]) == ("epoch", 0.6)
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1/3  step 4/12  5 images/s  loss 0.8000  accuracy 0.5000",
        "epoch 1/3 done  loss 0.8000  accuracy 0.5000  val loss 0.7000  val accuracy 0.6000  2.0 s",
    ]


def test_only_the_chief_writes_events_and_speed(tmp_path, capsys):
    tested = recorder(tmp_path, is_chief=False, log_every=2)
    tested.call(1, 2, 10.0, 2.0, 0.5, 0.01, LOGS)
    tested.events(tested.row(1, {**LOGS, "val_loss": 0.7, "val_accuracy": 0.6}, 0.01))
    tested.add(tested.row(1, {**LOGS, "val_loss": 0.7, "val_accuracy": 0.6}, 0.01))
    assert [row["epoch"] for row in tested.history.rows] == [1]
    assert not any((tmp_path / name).exists() for name in ("logs", "history.csv"))
    assert capsys.readouterr().out == "epoch 1/3  step 4/12\n"


@pytest.mark.parametrize(("max_restarts", "tags"), [(3, {"restarts": 2.0}), (0, {})])
def test_tensorboard_marks_restarts(max_restarts, tags, tmp_path, monkeypatch):
    """Tensorboard marks restarts of a run that may have some."""
    tested, written = recorder(tmp_path, is_chief=True, max_restarts=max_restarts), []
    tested._progress.restarts = 2
    monkeypatch.setattr(tested._events, "_scalars", lambda split, epoch, values: written.append(values))
    tested.events(tested.row(1, {}, 0.01))
    assert {tag: value for tag, value in written[0].items() if tag == "restarts"} == tags


@pytest.mark.parametrize(("table", "noun"), [(None, "images"), (object(), "examples")])
def test_chief_writes_images_or_examples_per_second(table, noun, tmp_path, capsys):
    for log_every in (2, 0):
        recorder(tmp_path, is_chief=True, log_every=log_every, table=table).call(1, 2, 10.0, 2.0, 0.5, 0.01, LOGS)
    assert capsys.readouterr().out.splitlines() == [
        f"step 4: 5.0 {noun}/s, on average 5.0",
        f"epoch 1/3  step 4/12  5 {noun}/s  loss 0.8000  accuracy 0.5000",
    ]


@pytest.mark.parametrize(("shares", "shown"), [([1, 1], None), ([3, 1], [3, 1])])
def test_the_summary_is_what_readers_accept(shares, shown, tmp_path):
    tested = recorder(tmp_path, is_chief=True)
    record_epoch(tested)
    tested.summary("SUCCEEDED", False, 12.5, Choice("packed", "as configured", 100, sums=(116,)), shares, ["f" * 64] * 2)
    written = (tmp_path / "summary.json").read_text()
    values = summary(written)
    assert values == json.loads(written)
    assert (values["state"], values["steps"], values["epochs_done"], values["total_steps"]) == ("SUCCEEDED", 4, 1, 12)
    assert (values["shares"], values["best"]) == (shown, {"epoch": 1, "val_accuracy": 0.6})
    assert (values["weights_sha256"], values["weights_sha256_by_rank"]) == ("f" * 64, ["f" * 64] * 2)
    sent = {"sent_bytes": 100, "transport": "direct", "sums": [116]}
    assert values["reduction"] == {"name": "packed", "why": "as configured", "measured": False, **sent}
    assert values["exact"] is True
