"""What evaluators wrote during a run, recorded on the control node."""

import csv
import json

import pytest

from control.runs import evaluations

MATRIX = {"name": "", "classes": ["a", "b"], "confusion": [[3, 1], [0, 4]]}


@pytest.fixture
def run(tmp_path):
    """A run of three epochs."""
    rows = [f"{epoch},0.5,0.9,0.01,1.0,10.0" for epoch in (1, 2, 3)]
    (tmp_path / "history.csv").write_text("\n".join(["epoch,loss,accuracy,learning_rate,seconds,images_per_s", *rows]) + "\n")
    return tmp_path


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
    assert evaluations.take(run, ["node5"]) == []
    assert epochs(run) == [(1, "at 1"), (2, "at 2")]
    assert evaluations.rows(run / "evaluations.csv")[2] == {"loss": 0.25, "accuracy": 0.875}
    write(run, 2, at="later", metrics={"loss": 0.2, "accuracy": 1.0})
    assert evaluations.take(run, ["node5", "node4"]) == []
    assert epochs(run) == [(1, "at 1"), (2, "at 2"), (2, "later")]
    assert evaluations.rows(run / "evaluations.csv")[2]["accuracy"] == 1.0, "of an epoch that was trained again, the latest counts"


def test_an_epoch_of_an_attempt_that_was_not_continued_is_none(run):
    write(run, 4)
    assert evaluations.take(run, ["node5"]) == []
    assert not (run / "evaluations.csv").exists()


def test_what_another_host_wrote_is_not_read(run):
    write(run, 1, host="node3")
    assert evaluations.take(run, ["node5"]) == []
    assert not (run / "evaluations.csv").exists()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"images": "\x1b[2J"}, "not what a worker writes"),
        ({"seconds": -1e40}, "not what a worker writes"),
        ({"outputs": [MATRIX | {"confusion": [[1]]}]}, "not what a worker writes"),
        ({"note": "x" * 2**24}, "more than 16,777,216 bytes"),
        ({"metrics": {"loss": 0.5, "accuracy,\n=cmd()": 1.0}}, "other metrics than the rows there"),
        ({"metrics": {"loss": 0.5}}, "other metrics than the rows there"),
    ],
)
def test_what_a_hostile_evaluator_wrote_changes_nothing(run, more, why):
    write(run, 1)
    assert evaluations.take(run, ["node5"]) == []
    before = (run / "evaluations.csv").read_bytes()
    write(run, 2, at="2", **more)
    (warning,) = evaluations.take(run, ["node5"])
    assert why in warning
    assert warning.isprintable()
    assert (run / "evaluations.csv").read_bytes() == before


def test_a_link_out_of_the_run_is_not_followed(run, tmp_path_factory):
    secret = tmp_path_factory.mktemp("home") / "secret.json"
    write(run, 1)
    written = run / "workers" / "node5" / "evaluations" / "epoch-0001.json"
    secret.write_bytes(written.read_bytes())
    written.unlink()
    written.symlink_to(secret)
    evaluations.take(run, ["node5"])
    assert not (run / "evaluations.csv").exists()
