"""benchmarks/scripts/examples.py: what the heads of the examples ask for."""

import pytest

from benchmarks.scripts.examples import METRICS, Row, stages, table
from tests.project import ROOT


def test_every_example_is_measured():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_the_last_training_of_a_head_is_the_examples_own(name):
    *_, last = stages(name)
    assert (last.given["model"], last.given["dataset"], last.given["run"]) == (
        f"examples/{name}.py:build",
        f"examples/{name}.py:data",
        name,
    )
    assert int(last.given["epochs"]) > 0
    assert last.batch % 2 == 0


def test_fine_tuning_has_three_of_which_each_starts_from_the_one_before():
    first, second, third = stages("finetuning")
    assert first.options() == {"classes": 26}
    assert second.options() == {"frozen": True}
    assert second.settings["train.skip_mismatch"] == "true"
    assert third.options() == {"rate": 0.0002}
    assert [stage.batch for stage in (first, second, third)] == [64, 16, 16]
    assert second.given["weights"] == "runs/letters/checkpoints/epoch-0008.keras"
    assert third.given["weights"] == f"runs/head/checkpoints/epoch-{int(second.given['epochs']):04d}.keras"


def test_the_table_has_medians_and_ranges():
    rows = [Row("text", 2, seed, metric, 100.0) for seed, metric in ((1, 0.7), (2, 0.9), (3, 0.8))]
    shown = table(rows)
    assert "0.8" in shown
    assert "0.7 to 0.9" in shown
