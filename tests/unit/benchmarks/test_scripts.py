"""Scripts that measure: what they read from runs, and their tables."""

import json
from argparse import ArgumentTypeError
from collections import Counter

import numpy as np
import pytest

from benchmarks.scripts import launch_time, parameter_server, predictions, stragglers, taxi
from benchmarks.scripts.stragglers import EVEN, Row
from benchmarks.shared import script
from trainer.common.errors import LockstepError
from trainer.rundir.straggler import CAUSES


def test_an_unknown_case_is_refused():
    assert [list(script.in_turn("ab", number)) for number in (0, 1, 2)] == [["a", "b"], ["b", "a"], ["a", "b"]]
    with pytest.raises(ArgumentTypeError, match=r"even,odd: odd is unknown; there are even, half, slow-link"):
        script.names("even,odd", parameter_server.CASES)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Commands of a checkout, and their command lines; they end with this code."""

    def make(code):
        (tmp_path / "runs/a").mkdir(parents=True)
        (tmp_path / "ansible-playbook").write_text(f'#!/bin/sh\necho "$@" >> typed\necho "$@"\nexit {code}\n')
        (tmp_path / "ansible-playbook").chmod(0o755)
        monkeypatch.setattr(script.sys, "executable", str(tmp_path / "python"))
        return script.Commands(("-i", "lab", "-e", "b=1"), tmp_path)

    return make


def test_a_run_is_deleted_before_and_after(commands, tmp_path):
    with commands(0).trained("a", "-e", "c=2") as folder:
        assert folder == tmp_path / "runs/a"
    delete = "playbooks/delete_run.yml -e run=a -i lab"
    assert (tmp_path / "typed").read_text().splitlines() == [delete, "train.yml -e run=a -i lab -e b=1 -e c=2", delete]


def test_a_failed_command_ends_with_its_last_lines(commands):
    with pytest.raises(SystemExit, match=r"doctor\.yml ended with exit code 3:\ndoctor\.yml -i lab -e b=1$"):
        commands(3).play("doctor.yml")


def test_each_part_counts_from_the_one_before():
    phases = [("starting", 104.0), ("caching", 105.0), ("training", 110.0), ("saving", 113.0), ("training", 114.0), ("ended", 117.0)]
    records = [{"kind": "phase", "phase": name, "t": t} for name, t in phases]
    records += [{"kind": "steps", "t": t} for t in (111.5, 115.0)] + [{"kind": "heartbeat", "phase": "saving", "t": 116.0}]
    parts = {"starting": 4.0, "caching": 1.0, "training": 5.0, "steps": 1.5, "finishing": 2.0, "leaving": 2.5}
    whole = {"first step": 11.5, "after": 4.5, "prompt": 19.5}
    assert launch_time.seconds(100.0, sorted(records, key=lambda record: record["t"]), 119.5) == parts | whole


# --- synchronous and asynchronous

HISTORY = [
    {"epoch": number, "seconds": seconds, "images_per_s": rate, "val_loss": loss}
    for number, seconds, rate, loss in ((1, 10.0, 100.0, 2.0), (2, 5.0, 200.0, 1.5), (3, 5.0, 160.0, 1.6))
]


@pytest.mark.parametrize(("loss", "seconds", "epochs"), [(2.0, "10.0", 1), (1.5, "15.0", 2), (1.6, "15.0", 2), (1.4, "-", "-")])
def test_seconds_count_until_the_loss_is_reached(loss, seconds, epochs):
    row = parameter_server.row("even", "synchronous", HISTORY, loss, {})
    assert (str(row.seconds), row.epochs, str(row.per_s), str(row.loss), row.staleness) == (seconds, epochs, "140", "1.5000", "")
    assert "largest 8" in parameter_server.row("half", "asynchronous", HISTORY, 1.5, Counter({0: 5, 8: 5})).staleness


# --- stragglers


@pytest.mark.parametrize(
    ("case", "named", "cause", "right"),
    [
        ("quota", "node3", "quota", True),
        ("quota", "node2", "quota", False),
        ("quota", "node3", "load", False),
        ("quota", "", "", False),
        (EVEN, "", "", True),
        (EVEN, "node3", "load", False),
    ],
)
def test_host_and_cause_must_be_right(case, named, cause, right):
    assert Row(1, case, "node3", named, cause).right is right
    assert set(stragglers.CASES) - {EVEN} <= set(CAUSES)


@pytest.mark.parametrize(
    ("causes", "case", "answer"),
    [
        (("load", "quota"), "quota", ("node2", "quota")),
        (("load", ""), "load", ("", "")),
        (("", "unknown", ""), EVEN, ("node2", "unknown")),
        ((), "quota", None),
    ],
)
def test_the_last_comparison_is_the_answer(causes, case, answer, tmp_path):
    """Of equal hosts, none may ever be named."""
    (tmp_path / "workers/node1").mkdir(parents=True)
    (tmp_path / "cluster.json").write_text(json.dumps({"hosts": [{"name": "node1"}, {"name": "node2"}]}))
    numbers = {"t": 1.0, "kind": "straggler", "epoch": 1, "own_us": 1, "others_us": 1, "value": 1, "usual": 1}
    lines = [json.dumps({**numbers, "cause": cause, "rank": 1 if cause else 0}) for cause in causes]
    (tmp_path / "workers/node1/metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if answer:
        assert stragglers.named(tmp_path, case) == answer
        return
    with pytest.raises(LockstepError, match="the workers were not compared; train for more steps"):
        stragglers.named(tmp_path, case)


def test_the_table_of_stragglers(tmp_path):
    for row in (Row(1, "link", "node3", "node3", "link"), Row(2, "link", "node2", "", ""), Row(3, EVEN, "node1", "node4", "unknown")):
        stragglers.STORE.put(tmp_path / "rows.csv", row)
    assert stragglers.table(stragglers.STORE.read(tmp_path / "rows.csv")).splitlines() == [
        "  case  right  of  named instead",
        "  even      0   1  unknown node4",
        "  link      1   2  nothing",
    ]


# --- predictions


def test_the_table_of_predictions(tmp_path):
    for number in (1, 2, 3, 3):
        predictions.STORE.put(tmp_path / "rows.csv", predictions.Row("1 Gbit/s", number, 2, 1000.0 + 50 * number, 1000.0))
    assert predictions.table(predictions.STORE.read(tmp_path / "rows.csv")).splitlines() == [
        "  network   workers  rounds  predicted images/s  measured  error  lowest  highest",
        "  1 Gbit/s        2       3               1,100     1,000    10%      5%      15%",
    ]


def test_every_round_has_an_order_of_its_own():
    orders = [predictions._shuffled(5, number) for number in (1, 2, 3)]
    assert [sorted(order) for order in orders] == [[1, 2, 3, 4, 5]] * 3
    assert len({tuple(order) for order in orders}) == 3


# --- the taxi model beside simpler ones


@pytest.mark.parametrize(
    ("y", "probability", "shown"),
    [
        ([1, 1, 0, 0], [0.9, 0.2, 0.6, 0.1], ["0.500", "0.750", "0.500", "0.500", "0.500", "0.400"]),
        ([0, 0], [0.2, 0.4], ["0.000", "-", "1.000", "-", "-", "0.300"]),
        ([1, 1], [0.7, 0.7], ["1.000", "-", "1.000", "1.000", "1.000", "0.300"]),
    ],
)
def test_scores_that_are_not_defined_are_dashes(y, probability, shown):
    assert [str(value) for value in taxi.scores(np.array(y), np.array(probability))] == shown


def trips(number: int, seed: int) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed)
    numbers = {name: drawn.uniform(1, 50, (number, 1)) for name in ("fare", "trip_miles", "trip_seconds")}
    return {**numbers, "payment_type": drawn.choice(["Cash", "Card"], number), "company": drawn.choice(["A", "B", "C"], number)}


def test_regression_is_that_of_scikit_learn():
    # LogisticRegression() of scikit-learn 1.9.1 behind log1p, StandardScaler and OneHotEncoder, on the same trips.
    x = trips(200, 1)
    y = taxi.is_paid(x, "Card").astype(float)
    y[::7] = 1 - y[::7]
    assert np.allclose(taxi.regression(x, y, trips(3, 2)), [0.4268, 0.8766, 0.1798], atol=1e-4)
    assert taxi.is_paid(x, None).all()
