"""What counts as right, and the tables of two benchmarks."""

import json

import pytest

from benchmarks.scripts import predictions, stragglers
from benchmarks.scripts.stragglers import EVEN, Row
from benchmarks.shared import script
from trainer.common.errors import LockstepError
from trainer.rundir.straggler import CAUSES


@pytest.mark.parametrize(
    ("row", "right"),
    [
        (Row("quota", "node3", "node3", "quota"), True),
        (Row("quota", "node3", "node2", "quota"), False),
        (Row("quota", "node3", "node3", "load"), False),
        (Row("quota", "node3", "", ""), False),
        (Row(EVEN, "node3", "", ""), True),
        (Row(EVEN, "node3", "node3", "load"), False),
    ],
)
def test_host_and_cause_must_be_right(row, right):
    assert row.right is right


def test_every_case_is_a_cause():
    assert set(stragglers.CASES) - {EVEN} <= set(CAUSES)


@pytest.fixture
def run(tmp_path):
    """A run with records of these causes, of node2."""

    def make(*causes):
        (tmp_path / "workers/node1").mkdir(parents=True)
        (tmp_path / "cluster.json").write_text(json.dumps({"hosts": [{"name": "node1"}, {"name": "node2"}]}))
        numbers = {"t": 1.0, "kind": "straggler", "epoch": 1, "own_us": 1, "others_us": 1, "value": 1, "usual": 1}
        lines = [json.dumps({**numbers, "cause": cause, "rank": 1 if cause else 0}) for cause in causes]
        (tmp_path / "workers/node1/metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return tmp_path

    return make


def test_the_last_comparison_is_the_answer(run):
    assert stragglers.named(run("load", "quota"), "quota") == ("node2", "quota")


def test_a_straggler_that_went_away_is_none(run):
    assert stragglers.named(run("load", ""), "load") == ("", "")


def test_of_equal_hosts_none_may_ever_be_named(run):
    assert stragglers.named(run("", "unknown", ""), EVEN) == ("node2", "unknown")


def test_a_run_too_short_to_compare(run):
    with pytest.raises(LockstepError, match="the workers were not compared; train for more steps"):
        stragglers.named(run(), "quota")


def test_rows_are_kept(tmp_path):
    rows = [Row("quota", "node3", "node3", "quota"), Row(EVEN, "node1", "", "")]
    script.record(tmp_path / "rows.csv", rows)
    assert script.recorded(tmp_path / "rows.csv", stragglers.Row) == rows
    assert script.recorded(tmp_path / "none.csv", stragglers.Row) == []


def test_the_table_of_stragglers():
    rows = [Row("link", "node3", "node3", "link"), Row("link", "node2", "", ""), Row(EVEN, "node1", "node4", "unknown")]
    assert stragglers.table(rows).splitlines() == [
        "  case  right  of  named instead",
        "  even      0   1  unknown node4",
        "  link      1   2  nothing",
    ]


def test_predictions_are_kept_by_network(tmp_path):
    rows = [predictions.Row("1 Gbit/s", 1, 2, 1100.0, 1000.0), predictions.Row("1 Gbit/s", 2, 2, 950.0, 1000.0)]
    script.record(tmp_path / "rows.csv", rows)
    assert script.recorded(tmp_path / "rows.csv", predictions.Row) == rows
    assert [row.error for row in rows] == pytest.approx([0.1, -0.05])


def test_the_table_of_predictions():
    rows = [predictions.Row("1 Gbit/s", number, 2, 1000.0 + 50 * number, 1000.0) for number in (1, 2, 3)]
    assert predictions.table(rows).splitlines() == [
        "  network   workers  rounds  predicted images/s  measured  error  lowest  highest",
        "  1 Gbit/s        2       3               1,100     1,000    10%      5%      15%",
    ]


def test_every_round_measures_every_number_of_workers_in_its_own_order():
    orders = [predictions.shuffled(5, number) for number in (1, 2, 3)]
    assert [sorted(order) for order in orders] == [[1, 2, 3, 4, 5]] * 3
    assert len({tuple(order) for order in orders}) == 3
