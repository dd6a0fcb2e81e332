"""What a worker writes: metrics.jsonl, history.csv, and files that are whole or absent."""

import json

import pytest

from tests.unit.samples import HISTORY
from trainer.common import files
from trainer.host.host_load import Load
from trainer.rundir.metrics_log import Metrics
from trainer.rundir.schemas import PHASES, read_history
from trainer.worker.telemetry import History, ProgressLines, Splits, StepLines


def row(epoch, val_accuracy=0.5, **more):
    values = dict.fromkeys(HISTORY, 0.25)
    return {**values, "epoch": epoch, "val_accuracy": val_accuracy, **more}


def test_metrics_lines_are_json_objects(tmp_path):
    """Also those that are appended after a restart."""
    path = tmp_path / "workers" / "a" / "metrics.jsonl"
    metrics = Metrics(path)
    metrics.heartbeat()
    metrics.phase("joining", 'waits for "b"\nand ö')
    metrics = Metrics(path)
    metrics.record("steps", epoch=1, step=8, images_per_s=100.0, loss=2.3, accuracy=0.1, input_wait=0.0, seconds=0.5)
    metrics.phase("training")
    metrics.step = 8
    metrics.heartbeat()
    metrics.record("epoch", **row(1))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["kind"] for line in lines] == ["heartbeat", "phase", "steps", "phase", "heartbeat", "epoch"]
    assert all(line["t"] > 1e9 for line in lines)
    assert lines[0]["phase"] == "starting"
    assert (lines[1]["phase"], lines[1]["note"]) == ("joining", 'waits for "b"\nand ö')
    assert (lines[2]["step"], lines[2]["loss"]) == (8, 2.3)
    assert (lines[4]["phase"], lines[4]["step"]) == ("training", 8)
    assert {key: lines[5][key] for key in HISTORY} == row(1)


PARTS = {"forward_backward": 0.0231234567, "compression": 0.004, "all_reduce": 0.03, "apply": 0.0036}


@pytest.fixture
def recorded(tmp_path):
    """Splits that write to a file, and a function that reads what is there."""
    path = tmp_path / "metrics.jsonl"
    return Splits(Metrics(path)), lambda: [json.loads(line) for line in path.read_text().splitlines()]


def test_own_work_has_mean_wait_and_median_rest(recorded):
    splits, _ = recorded
    parts = {"forward_backward": 0.08, "compression": 0.004, "all_reduce": 0.5, "apply": 0.006}
    assert splits.recent() == Load()
    for step, (waited, more) in enumerate([(0.0, 0.0), (1.2, 0.0), (0.0, 3.0)]):
        splits.waited(waited, 8)
        splits.sample(1, 8 * step, 64, parts | {"apply": parts["apply"] + more}, 0.6)
    assert splits.recent() == Load(140_000, 50_000, reduced_us=500_000), "one stall of 1.2 s in 24 steps"
    splits.waited(0.0, 8)
    assert splits.recent() == Load(90_000, 0, reduced_us=500_000)


def test_step_apart_records_the_mean_wait_before(recorded):
    """A step taken apart is recorded with the mean wait since the one before."""
    splits, lines = recorded
    splits.waited(0.07, 7)
    splits.waited(0.01, 1)
    splits.sample(epoch=2, step=50, images=64, parts=PARTS, seconds=0.061)
    splits.waited(0.002, 1)
    splits.sample(epoch=2, step=51, images=3, parts=PARTS, seconds=0.05)
    first, second = lines()
    assert first.pop("t") > 1e9
    assert list(first.items()) == [
        ("kind", "split"),
        ("epoch", 2),
        ("step", 50),
        ("input", 0.01),
        ("forward_backward", 0.023123),
        ("compression", 0.004),
        ("all_reduce", 0.03),
        ("apply", 0.0036),
        ("step_seconds", 0.071),
        ("images", 64),
    ]
    assert (second["step"], second["input"], second["step_seconds"], second["images"]) == (51, 0.002, 0.052, 3)


def test_traced_sample_is_left_out_with_its_wait(recorded):
    splits, lines = recorded
    splits.waited(9.0, 1)
    splits.sample(epoch=1, step=50, images=64, parts=None, seconds=3.0)
    assert lines() == []
    assert splits.epoch() == {}
    splits.waited(0.5, 50)
    splits.sample(epoch=1, step=100, images=64, parts=PARTS, seconds=0.06)
    assert [(line["step"], line["input"]) for line in lines()] == [(100, 0.01)]


def test_epoch_is_the_mean_of_its_samples(recorded):
    splits, _ = recorded
    for apply in (0.002, 0.004):
        splits.waited(0.001, 1)
        splits.sample(epoch=1, step=1, images=1, parts={**PARTS, "apply": apply}, seconds=0.1)
    means = splits.epoch()
    assert tuple(means) == PHASES
    assert (means["input"], means["all_reduce"], means["apply"]) == pytest.approx((1.0, 30.0, 3.0))
    assert splits.epoch() == {}


def test_history_round_trips(tmp_path):
    path = tmp_path / "history.csv"
    history = History(path)
    assert (read_history(path), history.best()) == ([], None)
    history.add(row(1, 0.1, loss=1 / 3, learning_rate=1e-4))
    history.add(row(2, 0.2, val_auc=0.75))
    history.write()
    assert path.read_text().splitlines()[0] == "epoch,loss,accuracy,val_loss,val_accuracy,learning_rate,seconds,images_per_s,val_auc"
    assert read_history(path) == history.rows == [row(1, 0.1, loss=1 / 3, learning_rate=1e-4), row(2, 0.2, val_auc=0.75)]
    assert isinstance(read_history(path)[0]["epoch"], int)
    assert History(path).rows == history.rows


def test_unvalidated_epochs_leave_columns_empty(tmp_path):
    """Epochs without a validation leave its columns empty and are not the best."""
    path = tmp_path / "history.csv"
    history, validated = History(path), row(2, 0.1)
    unvalidated = {name: value for name, value in row(1, 0.9).items() if not name.startswith("val_")}
    for one in (unvalidated, validated, {**unvalidated, "epoch": 3}):
        history.add(one)
        history.write()
    assert path.read_text().splitlines()[0] == "epoch,loss,accuracy,val_loss,val_accuracy,learning_rate,seconds,images_per_s"
    assert read_history(path) == history.rows
    assert "val_loss" not in history.rows[2]
    assert history.best() == {"epoch": 2, "val_accuracy": 0.1}


def test_retrained_epoch_replaces_its_row_and_later(tmp_path):
    """An epoch trained again replaces its row and those after."""
    history = History(tmp_path / "history.csv")
    for epoch in (1, 2, 3):
        history.add(row(epoch, 0.1))
    history.add(row(2, 0.9))
    history.write()
    assert [(one["epoch"], one["val_accuracy"]) for one in read_history(tmp_path / "history.csv")] == [(1, 0.1), (2, 0.9)]


@pytest.mark.parametrize(("epochs", "left"), [(0, []), (2, [1, 2]), (9, [1, 2, 3])])
@pytest.mark.parametrize("lost", [(), (1, 2, 3), (2, 3)])
def test_resumed_history_is_what_the_state_saw(epochs, left, lost, tmp_path):
    """A resumed history is what the state has seen whatever the file lacks."""
    history = History(tmp_path / "history.csv")
    for epoch in {1, 2, 3} - set(lost):
        history.add(row(epoch))
    older = history.rows[:]
    history.restore([row(epoch) for epoch in (1, 2, 3) if epoch <= epochs], epochs)
    assert history.rows == [row(epoch) for epoch in left]
    history.rows = older
    history.restore([], epochs)
    assert history.rows == [one for one in older if one["epoch"] <= epochs], "states of older versions hold no rows"


def test_replacing_puts_the_file_in_place(tmp_path):
    """Replacing puts the file into place when the block ends well."""
    path = tmp_path / "new" / "file.txt"
    with files.replacing(path) as part:
        part.write_text("whole")
        assert not path.exists()
        assert (part.parent, part.suffix) == (path.parent, ".txt")
    assert path.read_text() == "whole"
    assert [one.stat().st_mode & 0o777 for one in (path, path.parent)] == [0o640, 0o750]
    assert [one.name for one in path.parent.iterdir()] == ["file.txt"]


def half_written(path):
    with files.replacing(path) as part:
        part.write_text("half")
        raise RuntimeError("disk full")


@pytest.mark.parametrize("before", [None, "old"])
def test_replacing_leaves_what_was_there_when_block_raises(before, tmp_path):
    path = tmp_path / "file.txt"
    if before is not None:
        path.write_text(before)
    with pytest.raises(RuntimeError, match="disk full"):
        half_written(path)
    assert [one.read_text() for one in tmp_path.iterdir()] == ([before] if before else [])


def test_json_round_trips_and_keeps_letters(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"name": "Käse", "counts": [1, 2]})
    assert "Käse" in path.read_text(encoding="utf-8")
    assert files.read_json(path) == {"name": "Käse", "counts": [1, 2]}


def test_lines_tell_of_waits_and_seldom_of_loss():
    """Lines tell of late and on average and ten times as seldom of loss and rate."""
    lines = StepLines(10, "image")

    def add(step, steps, images, seconds, rate=0.1):
        return lines.add(step, steps, images, seconds, rate, {"loss": 1 / step, "accuracy": 0.5})

    assert add(8, 8, 800, 2.0) == []
    assert add(10, 2, 200, 0.5) == ["step 10: 400.0 images/s, on average 400.0"]
    assert add(20, 10, 1000, 5.0) == ["step 20: 200.0 images/s, on average 266.7"]
    assert add(99, 79, 7900, 79.0) == [f"step 99: 100.0 images/s, on average {9900 / 86.5:.1f}"]
    assert add(100, 1, 100, 1.0, 0.05)[1:] == ["step 100: loss 0.0100, learning rate 0.05"]


@pytest.mark.parametrize("detailed", [True, False])
def test_a_workers_log_says_how_far_it_is(detailed):
    now = [100.0]
    lines = ProgressLines(3, 210, "image", detailed, lambda: now[0])
    assert lines.add(1, 10, 1000, 2.0, {"loss": 0.51234, "accuracy": 0.8}) == [
        "epoch 1/3  step 10/210" + "  500 images/s  loss 0.5123  accuracy 0.8000" * detailed
    ]
    now[0] += 9
    assert lines.add(1, 20, 1000, 1.0, {"loss": 0.5, "accuracy": 0.8}) == []
    now[0] += 1
    assert lines.add(1, 30, 1000, 3.0, {"loss": 0.5, "accuracy": 0.9}) == [
        "epoch 1/3  step 30/210" + "  500 images/s  loss 0.5000  accuracy 0.9000" * detailed
    ]
    done = "epoch 2/3 done" + "  loss 0.2500  accuracy 0.2500  val loss 0.2500  val accuracy 0.7000  0.2 s" * detailed
    assert lines.epoch(row(2, 0.7)) == done
