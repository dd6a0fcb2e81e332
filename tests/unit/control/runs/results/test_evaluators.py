"""What evaluators wrote during a run, recorded on the control node."""

import contextlib
import csv
import hashlib
import json
import re

import pytest
from matplotlib import pyplot
from matplotlib.text import Text

from control.remote import admission
from control.remote.worker_files import evaluation
from control.runs.results import evaluations
from control.runs.results.evaluation_table import EvaluationTable
from control.runs.results.outcome import Verdict, Verdicts
from control.runs.results.run_folder import RunFolder
from trainer.common.errors import LockstepError

MATRIX = {"name": "", "classes": ["a", "b"], "confusion": [[3, 1], [0, 4]]}


@pytest.fixture
def run(tmp_path):
    """A run of three epochs with evaluators."""
    (folder := tmp_path / "one").mkdir()
    rows = [f"{epoch},{loss},0.9,0.01,1.0,10.0" for epoch, loss in ((1, 0.5), (2, 0.4), (3, 0.5))]
    (folder / "history.csv").write_text("\n".join(["epoch,loss,accuracy,learning_rate,seconds,images_per_s", *rows]) + "\n")
    evaluators = [{"name": name, "role": "evaluator"} for name in ("node5", "node4")]
    hosts = [{"name": "node1"}, {"name": "node2", "address": "10.0.0.2", "server_port": 1}, *evaluators]
    (folder / "cluster.json").write_text(json.dumps({"hosts": hosts}))
    return folder


def take(run):
    return evaluations.take(RunFolder(run))


def metrics(run):
    return EvaluationTable(run / "evaluations.csv").metrics


def show(run, every, pictures):
    """What is shown of a run, with a snapshot of each epoch."""
    (run / "checkpoints").mkdir()
    for one in every:
        (run / "checkpoints" / f"epoch-{one['epoch']:04d}.keras").touch()
    return evaluations.show(RunFolder(run), every, pictures)


def write(run, epoch, at="2026-11-27T01:00:00+00:00", host="node5", metrics=None, **more):
    folder = run / "workers" / host / "evaluations"
    folder.mkdir(parents=True, exist_ok=True)
    record = {"epoch": epoch, "split": "test", "metrics": metrics or {"loss": 0.25, "accuracy": 0.875}, "outputs": [MATRIX], "images": 8}
    record |= {"seconds": 1.5, "evaluated_at": at, "seal": "ab"} | more
    (folder / f"epoch-{epoch:04d}.json").write_text(json.dumps(record))


def epochs(run):
    with (run / "evaluations.csv").open(newline="") as stream:
        return [(int(row["epoch"]), row["evaluated_at"]) for row in csv.DictReader(stream)]


def test_each_evaluation_is_recorded_once(run):
    for epoch in (2, 1):
        write(run, epoch, at=f"at {epoch}")
    assert take(run) == []
    assert epochs(run) == [(1, "at 1"), (2, "at 2")]
    assert metrics(run)[2] == {"loss": 0.25, "accuracy": 0.875}
    assert evaluation((run / "evaluate" / "epoch-0002.json").read_text())["outputs"] == [MATRIX], "for the report"
    write(run, 2, at="later", metrics={"loss": 0.2, "accuracy": 1.0})
    assert take(run) == []
    assert epochs(run) == [(1, "at 1"), (2, "at 2"), (2, "later")]
    assert metrics(run)[2]["accuracy"] == 1.0, "of an epoch that was trained again, the latest counts"


def test_missing_metric_is_missing_in_its_row_alone(run):
    write(run, 1, metrics={"loss": 0.25})
    write(run, 2)
    write(run, 3, metrics={"loss": 0.125})
    assert take(run) == []
    table = metrics(run)
    assert table == {1: {"loss": 0.25}, 2: {"loss": 0.25, "accuracy": 0.875}, 3: {"loss": 0.125}}
    every = [evaluation((run / "evaluate" / f"epoch-000{epoch}.json").read_text()) for epoch in (2, 3)]
    shown = show(run, [{**one, "outputs": []} for one in every], [{}, {}])
    assert re.search(r"3 \(last\) +0\.1250 +- +8", shown), shown


def test_best_epoch_is_shown_by_class(run):
    every = [{"epoch": epoch, "images": 8, "seconds": 1.0, "metrics": {}, "outputs": [MATRIX]} for epoch in range(1, 7)]
    pictures = [{"confusion": f"{epoch}.png"} for epoch in range(1, 7)]
    shown = show(run, every, pictures)
    assert "Epoch 2 by class" in shown
    assert re.findall(r"\d[.]png", shown) == ["2.png", "4.png", "5.png", "6.png"]


@pytest.mark.parametrize(
    ("state", "more"), [("SUCCEEDED", ""), ("RUNNING", "; it may still train: first, best and last are of the epochs so far")]
)
def test_epochs_of_a_run_that_trains_may_change(run, state, more):
    (run / "summary.json").write_text(json.dumps({"state": state}))
    every = [{"epoch": 3, "images": 8, "seconds": 1.0, "metrics": {}, "outputs": [MATRIX]}]
    assert show(run, every, [{"confusion": "3.png"}]).splitlines()[0] == f"one on its test images{more}"


def test_epoch_of_an_abandoned_attempt_is_none(run):
    write(run, 4)
    assert take(run) == []
    assert not (run / "evaluations.csv").exists()


def test_evaluation_before_a_retraining_does_not_count(run):
    """What was trained again since is not the epochs evaluation."""
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "epoch-0001.keras").write_bytes(b"new")
    write(run, 1, snapshot_sha256=hashlib.sha256(b"old").hexdigest())
    take(run)
    assert not (run / "evaluations.csv").exists()
    write(run, 1, snapshot_sha256=hashlib.sha256(b"new").hexdigest())
    take(run)
    assert [epoch for epoch, _ in epochs(run)] == [1]


def test_what_another_host_wrote_is_not_read(run):
    write(run, 1, host="node3")
    assert take(run) == []
    assert not (run / "evaluations.csv").exists()


@pytest.mark.parametrize("metrics", [{"loss": 0.5, "accuracy,\n=cmd()": 1.0}, {"loss": 0.5, "accuracy": 1.0, "f1": 0.5}])
def test_other_metrics_do_not_mix_up_the_table(run, metrics):
    write(run, 1)
    assert take(run) == []
    before = (run / "evaluations.csv").read_bytes()
    write(run, 2, at="2", metrics=metrics)
    (warning,) = take(run)
    assert warning == "node5: epoch-0002.json is not recorded in evaluations.csv: it has other metrics than the rows there"
    assert (run / "evaluations.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("more", "fits"), [({}, True), ({"images": "\x1b[2J"}, False), ({"outputs": [MATRIX | {"confusion": [[1]]}]}, False)]
)
def test_only_evaluation_is_fetched_from_its_own_evaluator(run, more, fits):
    write(run, 1, **more)
    name = "workers/node5/evaluations/epoch-0001.json"
    (kind,) = (one for one in admission.kinds("node5", 10) if re.fullmatch(one.pattern, name))
    assert not any(re.fullmatch(one.pattern, name) for one in admission.kinds("node3", 10))
    with contextlib.nullcontext() if fits else pytest.raises(LockstepError):
        kind.read(run / name)


def test_a_run_does_not_fail_with_its_evaluator():
    ended = Verdicts([Verdict("node1", 0, "done"), Verdict("node5", 1, "unreachable"), Verdict("node6", 2, "failed", exit_code=1)])
    kept = ended.without(["node5", "node6"])
    assert [one.state for one in kept] == ["done", "lost", "lost"]
    assert kept.run_state("SUCCEEDED", cancelled=False) == "SUCCEEDED"
    assert ended.without(["node5"]).run_state("SUCCEEDED", cancelled=False) == "FAILED"


CALIBRATION = {"error": 0.061, "brier": 0.1234, "counts": [2, 0, 9], "predicted": [0.1, 0.0, 0.9], "observed": [0.2, 0.0, 0.8]}


ROUNDING_PX = 2
LONG = ["did not answer the second letter of 2025", "answered the second letter in the spring of 2025"]


@pytest.mark.parametrize("names", [["no", "yes"], LONG])
def test_no_label_is_cut_off(names, tmp_path, monkeypatch):
    """The label of the share lacked its class, and long names left the picture."""
    drawn = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    output = {"name": "", "confusion": [[4, 1], [1, 5]], "classes": names, "calibration": CALIBRATION}
    run = RunFolder(tmp_path / "a-very-long-name-of-a-run-that-somebody-typed-in-the-evening-2026")
    evaluations.draw(run, {"epoch": 12, "outputs": [output]})
    (figure,) = drawn
    share = figure.axes[1].get_ylabel()
    assert share.endswith(f"are {evaluations.shortened(names[1])}")
    room = figure.bbox.padded(ROUNDING_PX)
    outside = [text.get_text() for text in figure.findobj(Text) if text.get_text() and not inside(text.get_window_extent(), room)]
    assert outside == []


def inside(box, room):
    return room.x0 <= box.x0 and box.x1 <= room.x1 and room.y0 <= box.y0 and box.y1 <= room.y1
