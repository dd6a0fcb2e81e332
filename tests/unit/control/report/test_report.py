"""The report: its sentences from made runs, both pages, the zip, and that the same files give the same bytes."""

import base64
import dataclasses
import hashlib
import itertools
import json
import random
import re
import shutil
import tempfile
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from control.common import configurations, project, text, written_files
from control.report import archive, blocks, comparison, epochs, mistakes, page, report, sweeps, trained
from control.report.blocks import Table
from control.report.comparison import Comparison
from control.report.facts import Run
from control.report.settings import ONLY_OF, Settings
from control.report.sweeps import SweepAnalysis
from control.report.tasks import write as write_report
from control.runs.results import evaluations, next_steps, run_plots
from control.runs.results.course import OVERFITTING as LIMIT
from control.runs.results.course import Trend
from control.runs.results.evaluation_table import EvaluationTable
from control.runs.results.run_folder import RunFolder
from tests.unit.refusals import refusal
from tests.unit.report_samples import (
    OVERFITTING,
    make_project,
    make_run,
    make_sweep,
    write_history,
    write_split,
    write_tests,
)
from tests.unit.samples import ERRORS
from trainer.common.errors import ConfigError
from trainer.config import schema as configs
from trainer.data.spec import Leaf, Spec

ROOT = Path(__file__).resolve().parents[4]
TESTS = {1: 0.34, 3: 0.50, 5: 0.47}
NASTY = "<script>alert('x')</script> | *_[a](b)_* `c`"


@pytest.fixture
def sketched(monkeypatch):
    """Stand-ins for the pictures, which take a while to draw and have tests of their own."""
    for name in ("history", "compare", "split"):
        monkeypatch.setattr(run_plots, name, lambda values, path, *_, name=name: path.write_bytes(f"PNG {name} {values}".encode()))


@pytest.fixture
def run(tmp_path):
    """A run of five epochs that overfits, evaluated."""
    return Run.read(make_run(tmp_path / "runs", "first", tests=TESTS))


def made(tmp_path, name="other", **changes):
    return Run.read(make_run(Path(tempfile.mkdtemp(dir=tmp_path)), name, **changes))


def text_of(section):
    return " ".join(block.text for block in section.blocks if block.kind == "text")


# --- words


def test_numbers_in_sentences():
    assert [blocks.spent(seconds) for seconds in (0.4, 95.2, 119.6, 182.3, 4380)] == ["0 s", "95 s", "2 min 0 s", "3 min 2 s", "1 h 13 min"]
    assert (blocks.percent(0.58561), blocks.points(-0.0104)) == ("58.56%", "1.04 points")
    assert [text.listed(list("abc"[:n])) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert [text.count(n, "epoch") for n in (1, 2, 1200)] == ["1 epoch", "2 epochs", "1,200 epochs"]
    assert blocks.moment("2026-11-21T05:26:16+02:00") == "2026-11-21 03:26 UTC"
    assert blocks.code("a`b\nc") == "`a'b c`"


# --- what is read


def test_what_can_not_be_reported_says_why(tmp_path):
    (tmp_path / "new").mkdir()
    assert refusal(Run.read, tmp_path / "new") == (
        "run=new: it never started (no cluster.json); start it: ansible-playbook train.yml -e run=new"
    )
    write_history(make_run(tmp_path, "x") / "history.csv", [])
    assert refusal(Run.read, tmp_path / "x") == (
        "run=x: no finished epoch is known here, so there is nothing to report. Fix: see whether it waits, trains or has ended: "
        "ansible-playbook status.yml -e run=x; then fetch its results, or continue it: ansible-playbook train.yml -e run=x"
    )
    folder = make_run(tmp_path, "y", tests={1: 0.3})
    with (folder / "evaluations.csv").open("a") as stream:
        stream.write("three,test,1.0,0.4,2000,1,now\n")
    assert refusal(Run.read, folder) == (
        f"{folder}/evaluations.csv, line 3: not an evaluation (invalid literal for int() with base 10: 'three'); "
        "remove that line to evaluate its epoch again"
    )


def test_newest_evaluation_of_an_epoch_counts(tmp_path, run):
    table = EvaluationTable(tmp_path / "evaluations.csv")
    table.forget(3)
    assert not table.path.exists()
    about = {"split": "test", "images": 5, "seconds": 1}
    rows = [{"epoch": epoch, "metrics": {"loss": 1, "accuracy": epoch / 10}, **about} for epoch in (1, 4, 3, 4)]
    table.append(rows)
    table.forget(4)
    assert list(table.accuracies) == [1, 4, 3]
    table.forget(3)
    assert table.accuracies == {1: 0.1, 3: 0.3}
    write_tests(run.folder, {3: 0.99})
    assert Run.read(run.folder).tests[3]["accuracy"] == 0.99


def test_best_epoch_is_marked_among_validated_ones(tmp_path, run):
    assert run.marked == {1: "first", 3: "best", 5: "last"}
    assert made(tmp_path, rows=OVERFITTING[:1]).marked == {1: "first, best, last"}
    equal = made(tmp_path, "equal", rows=[(1, 0.5, 1, 0.5), (1, 0.5, 1, 0.5)])
    assert equal.marked == {1: "first, best", 2: "last"}, "the earliest of equals is the best"
    path = made(tmp_path).folder / "history.csv"
    head, *lines = path.read_text().splitlines()
    columns = [line.split(",") for line in lines]
    for cells in (columns[0], columns[3]):
        cells[3:5] = "", ""
    path.write_text("\n".join([head, *map(",".join, columns)]) + "\n")
    actual = Run.read(path.parent)
    assert [row["epoch"] for row in actual.history] == [2, 3, 5]
    assert actual.marked == {2: "first", 3: "best", 5: "last"}
    assert epochs.overfitting(actual).startswith("No overfitting by the rule: validation loss was lowest in epoch 3")
    assert "They were farthest apart in epoch 5" in " ".join(epochs.course(actual))


def test_compiled_model_has_its_own_optimizer_and_evaluation(tmp_path, run):
    """A compiled model has its own optimizer and perhaps nothing to evaluate."""
    compiled = dataclasses.replace(
        run, record=dataclasses.replace(run.record, compiled={"optimizer": "Adam, Adam", "validates": False}), tests={}
    )
    assert "sgd" not in Settings(compiled).optimizer
    assert "Adam, Adam" in Settings(compiled).optimizer
    assert (compiled.untested(), compiled.testable()) == ([], [])
    compiled.record.compiled.update({"optimizer": None, "validates": True})
    assert Settings(compiled).optimizer == "the model's own"
    assert compiled.untested() == [1, 3, 5]


# --- how accuracy changed


@pytest.mark.parametrize(
    ("rows", "sentences"),
    [
        (
            OVERFITTING,
            [
                "Training accuracy rose from 30.00% (epoch 1) through 55.00% (epoch 3) to 72.00% (epoch 5).",
                "Validation accuracy was 35.00% (epoch 1), 51.00% (epoch 3) and 48.00% (epoch 5).",
                "They were farthest apart in epoch 5: 24.00 points, training above.",
                "Training accuracy is the mean over an epoch's steps, while the weights still change; validation is measured at its end.",
            ],
        ),
        (
            [(1.0, 0.5, 1.0, 0.6), (1.2, 0.4, 1.0, 0.6)],
            [
                "Training accuracy fell from 50.00% (epoch 1) to 40.00% (epoch 2).",
                "Validation accuracy was 60.00% (epoch 1) and 60.00% (epoch 2).",
                "They were farthest apart in epoch 2: 20.00 points, validation above.",
            ],
        ),
        (
            OVERFITTING[:1],
            ["Only epoch 1 is finished: training accuracy 30.00%, validation accuracy 35.00%. One epoch shows no trend."],
        ),
    ],
    ids=["rises", "falls", "one epoch"],
)
def test_course_of_a_run(rows, sentences, tmp_path):
    actual = made(tmp_path, rows=rows)
    assert epochs.course(actual)[: len(sentences)] == sentences
    assert ("overfit" in text_of(epochs.sections(actual)[0])) == (len(rows) > 1)


def test_the_table_of_epochs(tmp_path, run):
    table = epochs.sections(run)[0].blocks[-1]
    assert table.caption == "First, middle, best and last of 5 epochs; all are in history.csv"
    assert [row[:2] for row in table.rows] == [["1", "first"], ["3", "middle, best"], ["5", "last"]]
    assert table.rows[1] == ["3", "middle, best", "1.2000", "55.00%", "1.4000", "51.00%", "0.01", "2,168"]
    short = epochs.sections(made(tmp_path, rows=OVERFITTING[:2]))[0].blocks[-1]
    assert (short.caption, len(short.rows)) == ("All epochs, as in history.csv", 2)


@pytest.mark.parametrize(
    ("rows", "trend", "sentence"),
    [
        (
            OVERFITTING,
            Trend.OVERFITS,
            "The model overfits after epoch 3: validation loss was lowest in epoch 3 (1.4000) and is 15.0% above that at the end, "
            "while training loss fell from 1.2000 to 0.8000.",
        ),
        (
            [(0.5, 1, 0.0, 1), (0.45, 1, 0.2, 1), (0.4, 1, 0.1, 1)],
            Trend.OVERFITS,
            "The model overfits after epoch 1: validation loss was lowest in epoch 1 (0.0000) and is 0.1000 at the end, ",
        ),
        (
            [*OVERFITTING[:3], (0.9, 0.6, 1.3, 0.5)],
            Trend.PASSED,
            "No overfitting: validation loss is at its lowest, 1.3000, in the last epoch.",
        ),
        (
            [*OVERFITTING[:3], (0.9, 0.6, 1.46, 0.5)],
            Trend.PASSED,
            "No overfitting by the rule: validation loss was lowest in epoch 3 (1.4000) and is 4.3% above that at the end; "
            "meanwhile training loss fell from 1.2000 to 0.9000.",
        ),
        (
            [*OVERFITTING[:3], (1.3, 0.6, 1.9, 0.5)],
            Trend.PASSED,
            "No overfitting by the rule: validation loss was lowest in epoch 3 (1.4000) and is 35.7% above that at the end; "
            "meanwhile training loss did not fall from 1.2000 to 1.3000.",
        ),
        (
            [*OVERFITTING[:3], (*OVERFITTING[-1][:2], 9.0, OVERFITTING[-1][3])],
            Trend.PASSED,
            "No overfitting by the rule: validation loss was lowest in epoch 3",
        ),
    ],
    ids=["it rises twice", "from zero", "lowest at the end", "it rises little", "training rises, too", "one epoch may be noise"],
)
def test_overfitting_by_the_rule(rows, trend, sentence, tmp_path):
    actual = made(tmp_path, rows=rows)
    assert actual.course.trend is trend
    assert epochs.overfitting(actual).startswith(sentence)
    short = (
        f"It overfits after epoch {actual.course.low['epoch']}."
        if trend is Trend.OVERFITS
        else "It does not overfit, by the rule stated below."
    )
    assert epochs.short(actual)[-1] == short


# --- one trend


def histories(count, seed=0):
    """Made histories of one to twelve epochs: losses and accuracies that rise, fall, stand still, or do as they like."""
    draw = random.Random(seed)
    for _ in range(count):
        epochs, way = draw.choice([1, 2, 3, 6, 12]), draw.choice([0.0, 0.02, 0.2, 1.0])
        rows, row = [], [draw.uniform(0.1, 3), draw.random(), draw.uniform(0.1, 3), draw.random()]
        for _ in range(epochs):
            drift = [-0.1, 0.05, draw.choice([-0.1, 0.0, 0.1]), draw.choice([-0.03, 0.0, 0.03])]
            row = [max(0.0, value + change + draw.gauss(0, way) * 0.3) for value, change in zip(row, drift, strict=True)]
            row[1], row[3] = min(1.0, row[1]), min(1.0, row[3])
            rows.append(tuple(round(value, draw.choice([1, 4])) for value in row))
        yield rows


def everything_said(actual):
    course = " ".join(block.text for section in epochs.sections(actual) for block in section.blocks if block.kind == "text")
    rows = [{**row, "epoch": row["epoch"]} for row in actual.history]
    return f"{course} {' '.join(epochs.short(actual))}", next_steps.after_run(actual.name, actual.summary, rows)


def test_no_two_sentences_of_report_contradict_each_other(tmp_path, run):
    seen = set()
    for rows in histories(1000):
        history = [dict(zip(("loss", "accuracy", "val_loss", "val_accuracy"), row, strict=True)) for row in rows]
        history = [{"epoch": number, **row, "learning_rate": 0.01, "images_per_s": 1.0} for number, row in enumerate(history, 1)]
        actual = dataclasses.replace(run, history=history, summary=run.summary.changed(epochs=len(rows)), tests={})
        sentences, commands = everything_said(actual)
        trend = actual.course.trend
        seen.add(trend)
        overfits = "The model overfits after" in sentences
        assert overfits == (trend is Trend.OVERFITS) == ("It overfits after" in sentences) == ("are not advised" in sentences), rows
        assert ("train longer" in sentences) == (trend in (Trend.SINGLE, Trend.RISING)), rows
        assert not (overfits and any(label == "train longer" for label, _ in commands)), rows
        assert not (overfits and "No overfitting" in sentences), rows
        assert ("It is the last one" in sentences) == (actual.best is actual.last and len(rows) > 1), rows
        # The rules, written out once more.
        low = min(history, key=lambda row: (row["val_loss"], row["epoch"]))
        limit = low["val_loss"] * (1 + LIMIT / 100)
        later = [row["val_loss"] for row in history[low["epoch"] :]][-2:]
        if limit not in [pytest.approx(one, abs=1e-9) for one in later]:
            rises = len(later) == 2 and min(later) > limit
            assert overfits == (rises and history[-1]["loss"] < low["loss"]), rows
    assert seen == set(Trend), "the made histories show every trend"


def test_rising_run_that_overfits_gets_one_advice(tmp_path):
    """A run whose accuracy rises while it overfits gets one advice.

    As it was seen: `overfits after epoch 1` beside `epoch 6 is the most promising, train longer`.
    """
    rows = [(1.0 - 0.1 * epoch, 0.5, 1.0 + 0.1 * epoch, 0.60 + 0.01 * epoch) for epoch in range(6)]
    actual = made(tmp_path, rows=rows)
    sentences, commands = everything_said(actual)
    assert "The model overfits after epoch 1: " in sentences
    assert "Epoch 6 is the most promising" in sentences
    assert "train longer" not in sentences
    assert [label for label, _ in commands] == []


def test_unfinished_runs_get_their_advice(tmp_path, monkeypatch):
    stopped = made(tmp_path, "stopped", rows=OVERFITTING[:3], state="CANCELLED")
    assert epochs._advice(stopped).endswith("; continue where it stopped: `ansible-playbook train.yml -e run=stopped`.")
    going = made(tmp_path, "going", rows=OVERFITTING[:3], state="RUNNING")
    assert epochs._advice(going).endswith("; it is still training, or nobody watched its end.")
    counted = made(tmp_path, "counted", rows=OVERFITTING[:3], in_steps=True, started_by="playbooks/slurm.yml")
    assert epochs._advice(counted).endswith("`ansible-playbook playbooks/slurm.yml -e run=counted -e set=train.steps=192`.")
    monkeypatch.setattr(project, "RUNS", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    going = made(tmp_path, "going", rows=OVERFITTING[:3], state="RUNNING")
    going.record.counts["epochs"] = 5
    assert write_report._unfinished(going) == "going: no outcome is recorded yet, so the report covers 3 of its 5 epochs"
    shown = write_report._written(report.Request([going], None, ROOT, []), ["README.md"], check=False)
    assert "  the rest of going     ansible-playbook status.yml -e run=going\n" in shown


# --- the most promising epoch


LONGER = "train longer: `ansible-playbook train.yml -e run=other -e epochs=6`."


@pytest.mark.parametrize(
    ("rows", "sentences"),
    [
        (
            OVERFITTING,
            [
                "It lies 1.00 points above the next best (epoch 4, 50.00%) and 3.00 points above the last (epoch 5, 48.00%).",
                "The run overfits, so more epochs of the same are not advised.",
                "With 1,000 validation images, differences below 4.47 points may be chance (two binomial standard errors).",
            ],
        ),
        ([(*row[:3], 0.5) for row in OVERFITTING[:3]], ["It lies level with the next best (epoch 2, 50.00%)."]),
        (
            OVERFITTING[:3],
            [
                "It lies 7.00 points above the next best (epoch 2, 44.00%).",
                f"It is the last one, so accuracy may still have been rising; {LONGER}",
            ],
        ),
        (OVERFITTING[:1], ["It is the only one."]),
    ],
    ids=["before the last", "level", "the last", "the only one"],
)
def test_lead_of_the_best_epoch(rows, sentences, tmp_path):
    first, *lead = epochs._promising(made(tmp_path, rows=rows))
    assert re.fullmatch(r"Epoch \d is the most promising, with a validation accuracy of \d\d\.00%\.", first)
    assert lead[: len(sentences)] == sentences


# --- test images


def test_test_accuracy_of_first_best_and_last(tmp_path, run):
    assert epochs._test_sentences(run) == [
        "On 2,000 test images, which training never saw, accuracy is 34.00% in epoch 1 (first), 50.00% in epoch 3 (best) and 47.00% "
        "in epoch 5 (last).",
        "The best epoch is 3.00 points above the last.",
        "The best epoch's test accuracy is 1.00 points below its validation accuracy, by which it was chosen.",
        "With 2,000 test images, differences below 3.16 points may be chance (two binomial standard errors).",
    ]
    assert epochs._untested(run) == []
    table = next(block for block in epochs._tested(run) if isinstance(block, Table))
    assert table.rows[1] == ["3", "best", "1.5000", "50.00%", "51.00%", "2,000", "2026-11-21 05:29 UTC"]
    assert table.numeric == [True, False, True, True, True, True, False]
    level = made(tmp_path, tests={3: 0.51, 5: 0.51})
    assert epochs._test_sentences(level)[1] == "The best epoch is level with the last."


def test_evaluations_that_are_missing_are_told(tmp_path):
    actual = made(tmp_path)
    assert [block.kind for block in epochs._tested(actual)] == ["text"]
    assert actual.evaluation_command == "ansible-playbook evaluate.yml -e run=other -e epoch=1,3,5"
    actual.record.dataset["test"] = 0
    assert (actual.untested(), epochs._tested(actual)[0].text) == ([], "The dataset has no test images.")
    actual = made(tmp_path, tests={5: 0.47})
    (actual.folder / "checkpoints/epoch-0001.keras").unlink()
    assert epochs._untested(actual) == [
        "Not evaluated on the test images yet: epoch 3 (best). To evaluate: `ansible-playbook evaluate.yml -e run=other -e epoch=3`.",
        "Epoch 1 (first) can't be evaluated: there is no snapshot of it in checkpoints/.",
    ]
    assert epochs._test_sentences(actual) == ["On 2,000 test images, which training never saw, accuracy is 47.00% in epoch 5 (last)."]


# --- what was trained


def test_what_was_trained(run):
    section = trained.sections(run)[0]
    assert text_of(section) == (
        "`first` trained the model `task_cnn` with 3,688,714 parameters, all of them trainable, on images of 32x32x3. "
        "The dataset `pets` has 2 classes (cat and dog): 4,000 images were used for training, 1,000 for validation, "
        "and 2,000 are held out for testing (digest `348271d54f5dbcaf`). "
        "A step took 128 images over 2 workers, an epoch 32 steps; the optimizer was `sgd` with learning rate 0.01 and momentum 0.9; "
        "training images were not augmented; gradients were reduced by `packed`; the seed was 1. "
        "State: SUCCEEDED, 5 of 5 epochs, 160 steps. It trained for 61 s, with validation and saving, at 2,298 images/s in training steps. "
        "The 2 workers ended with equal weights (SHA-256 `8c1d431dde07dfef`)."
    )


def test_where_it_ran(tmp_path, run):
    assert trained._place(run) == "2 hosts"
    assert trained._place(made(tmp_path, "a", address="127.0.0.")) == "2 workers of one machine"
    alone = made(tmp_path, "b", names=["node01"], address="127.0.0.")
    assert text_of(trained.sections(alone)[1]) == "It ran on 1 host."
    assert text_of(trained.sections(run)[1]) == "It ran on 2 hosts, all of one kind, with the same versions of Python and its packages."
    hosts = list(run.record.hosts)
    hosts[1] = dataclasses.replace(hosts[1], cpu="other", python="3.12.1")
    run = dataclasses.replace(run, record=dataclasses.replace(run.record, hosts=hosts))
    assert text_of(trained.sections(run)[1]) == "It ran on 2 hosts, of 2 kinds, with different versions of Python and its packages."
    hosts[0] = dataclasses.replace(hosts[0], packages={}, cpu="")
    row = trained.sections(run)[1].blocks[1].rows[0]
    assert row == ["0", "node01", "10.1.0.1:12345", "- (aarch64)", "4", "4", "3.11.7", "-", "-"]


def test_a_failed_run_names_its_root_cause(tmp_path):
    failure = {"host": "node02", "rank": 1, "state": "failed", "exit_code": 3, "message": "the loss is NaN"}
    actual = made(tmp_path, state="FAILED", failure=failure, epochs=9, restarts=2, weights_sha256_by_rank=None)
    assert trained._outcome(actual) == [
        "State: FAILED, 5 of 9 epochs, 160 steps.",
        "The first failure was on `node02` (rank 1): the loss is NaN.",
        "It trained for 61 s in 3 launches, with validation and saving, at 2,298 images/s in training steps.",
    ]


def test_unusual_facts_of_a_training_are_told(run):
    differing = run.summary.changed(weights_sha256_by_rank=["a" * 64, "b" * 64])
    assert trained._weights(differing) == ["The 2 workers ended with different weights, which must not happen."]
    timed = run.summary.changed(launch={"until": "result", "seconds_from_enter": 86.4})
    assert trained._time(timed, "image")[1] == "From Enter to the result, the command took 86 s."
    run.record.dataset["classes"] = [str(number) for number in range(100)]
    assert re.search(r"has 100 classes \(0, 1, 2, .*, 18, 19 and 80 more\)", trained._data(run))


@pytest.mark.parametrize("state", ["RUNNING", None])
def test_a_run_without_an_outcome(tmp_path, state):
    actual = made(tmp_path, state=state)
    assert not actual.ended
    assert trained._outcome(actual) == [
        "No outcome is recorded yet, so all figures cover the epochs so far; `ansible-playbook status.yml -e run=other` "
        "collects what the hosts have."
    ]


# --- comparison


DIGITS = {"name": "digits", "classes": ["0", "1"], "train": 5000, "test": 2000, "digest": "1" * 64}


@pytest.mark.parametrize(
    ("others", "better"),
    [
        (
            [{"model": "deep_cnn", "parameters": 1844357, "tests": {3: 0.62}, "images_per_s": 1149.0}],
            "`b` (`deep_cnn`) is better than `first` (`task_cnn`) by 12.00 points of test accuracy in the best epoch (62.00% against "
            "50.00%); it has 0.50 times its parameters and trained 0.50 times as many images per second.",
        ),
        (
            [{"tests": {3: 0.40}}, {"tests": {3: 0.515}}],
            "`c` (`task_cnn`) is the best of 3 runs, before `first` (`task_cnn`) by 1.50 points of test accuracy in the best epoch "
            "(51.50% against 50.00%), which may be chance (below 3.16 points); it has as many parameters and trained as many "
            "images per second.",
        ),
        (
            [{"rows": [*OVERFITTING[:2], (1, 0.6, 1.2, 0.61)], "images_per_s": None}],
            "`b` (`task_cnn`) is better than `first` (`task_cnn`) by 10.00 points of validation accuracy in the best epoch "
            "(61.00% against 51.00%); it has as many parameters.",
        ),
        ([{"tests": TESTS}], "`first` (`task_cnn`) and `b` (`task_cnn`) are equal: 50.00% test accuracy in their best epochs."),
        (
            [{"tests": {3: 0.62}, "cluster": {"dataset": DIGITS}}],
            "`b` (`task_cnn`) reaches 62.00% test accuracy in its best epoch, `first` (`task_cnn`) 50.00%; these are images of "
            "different datasets, so they do not show which model is better.",
        ),
    ],
    ids=["two runs", "three runs", "a test is missing", "equal runs", "different datasets"],
)
def test_which_run_is_better(others, better, tmp_path, run):
    runs = [run, *(made(tmp_path, name, **other) for name, other in zip("bc", others, strict=False))]
    assert Comparison(runs).better == better


def test_runs_are_called_by_their_examples(tmp_path, run):
    other = made(tmp_path, "second", tests={3: 0.62}, images_per_s=1149.0)
    for one in (run, other):
        one.record.dataset.update({"spec": {"structure": [0], "leaves": []}, "digest": one.name})
    assert "as many examples per second" in comparison._cost(other, run)
    assert "these are examples of different datasets" in Comparison([run, other]).better
    assert "examples/s" in Comparison([run, other])._table().header
    del run.record.dataset["spec"]
    assert "examples/s" in Comparison([run, other])._table().header
    dataset = {"name": "table", "classes": ["cat", "dog"], "train": 5000, "test": 2000, "digest": "34" * 32}
    spec = Spec([0, 1], (Leaf("x", "float32", (4,)), Leaf("y", "int64", ()))).to_json()
    actual = made(tmp_path, tests=TESTS, cluster={"dataset": {**dataset, "spec": spec}})
    shown = [section.title + text_of(section) for section in [*trained.sections(actual), *epochs.sections(actual)]]
    assert "On 2,000 test examples, which training never saw" in "".join(shown)
    assert "image" not in "".join(shown)


def judged_by(tmp_path, name, metric, **more):
    return made(tmp_path, name, config={"train": {"monitor": metric}}, **more)


def test_runs_are_compared_by_the_deciding_metric(tmp_path):
    runs = [judged_by(tmp_path, "wide", "val_loss", tests={3: 0.5}), judged_by(tmp_path, "deep", "val_loss", tests={3: 0.7})]
    section = Comparison(runs).section("compare.png")
    assert "`deep` (`task_cnn`) is better than `wide` (`task_cnn`) by 0.2000 of test loss in the best epoch (1.3000 against 1.5000);" in (
        text_of(section)
    )
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert table.header[5:7] == ["best validation loss", "test loss"]
    assert [row[5:7] for row in table.rows] == [["1.4000 (epoch 3)", "1.5000"], ["1.4000 (epoch 3)", "1.3000"]]
    assert isinstance(section.blocks[-1], blocks.Picture)


def test_runs_that_different_metrics_judge_are_not_compared(tmp_path, run):
    section = Comparison([run, judged_by(tmp_path, "other", "val_loss")]).section("compare.png")
    assert text_of(section).startswith(
        "These runs are not compared: the best epoch of `first` is that of the highest validation accuracy and `other` is that of the "
        "lowest validation loss."
    )
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert [row[5:7] for row in table.rows] == [["val accuracy 51.00% (epoch 3)", "accuracy 50.00%"], ["val loss 1.4000 (epoch 3)", "-"]]
    assert not any(isinstance(block, blocks.Picture) for block in section.blocks)


def test_what_else_differs(tmp_path, run):
    assert beside(run, made(tmp_path)) == "Model, dataset, workers, the trainer's code and all settings are the same."
    deep = made(tmp_path, "deep", model="deep_cnn", parameters=1844357)
    assert beside(run, deep) == "Everything else is the same: dataset, workers, the trainer's code and every other setting."
    other = made(tmp_path, "three", rows=OVERFITTING[:2], names=["a", "b", "c"], config={"seed": 2})
    assert beside(run, other) == "The model is the same; they differ in finished epochs, workers and seed."


def beside(*runs):
    return Comparison(runs).beside


def flat(values, prefix=""):
    for key, value in values.items():
        if isinstance(value, dict) and prefix == "":
            yield from flat(value, f"{key}.")
        else:
            yield prefix + key, value


APART = ("data.path", "model.name", "report.author", "report.title")
"""Keys that make no training another one, or that have sentences of their own."""


@pytest.mark.parametrize("key", [key for key, _ in flat(configurations.to_dict(configs.Config())) if key not in APART])
def test_every_setting_that_differs_is_named(tmp_path, run, key):
    """A setting that came after the list of what is compared was written would have passed in silence."""
    section, _, own = key.rpartition(".")
    method = {"optimizer": "adam" if own in ("beta_1", "beta_2", "epsilon") else "sgd", "reduction": "powersgd"}.get(section)
    one, two = (
        {section: {own: value, **({"name": method} if method and own != "name" else {})}} if section else {own: value} for value in (1, 2)
    )
    pair = [made(tmp_path, name, config=config) for name, config in (("one", one), ("two", two))]
    assert Comparison(pair).differing == {key: ["1", "2"]}
    assert comparison._name(key) in beside(*pair)


def test_setting_without_effect_makes_no_difference(tmp_path):
    def optimizer(name, momentum):
        return made(tmp_path, f"{name}-{momentum}", config={"optimizer": {"name": name, "learning_rate": 0.01, "momentum": momentum}})

    assert Comparison([optimizer("adam", 0.5), optimizer("adam", 0.9)]).differing == {}
    actual = Comparison([optimizer("sgd", 0.5), optimizer("adam", 0.7)]).differing
    assert actual["optimizer.momentum"] == ["0.5", "-"], "adam reads no momentum"
    assert actual["optimizer.beta_1"] == ["-", "0.9"]
    # Every method of the optimizer and the reduction has its own keys.
    for section, kind in (("optimizer", configs.Optimizer), ("reduction", configs.Reduction)):
        assert set(ONLY_OF[section]) <= {field.name for field in dataclasses.fields(kind)}


def test_table_of_differences_has_value_of_each_run(tmp_path, run):
    pictured = {"data": {"source": "folder", "path": "/data/pets", "image_size": [28, 28, 1]}, "augment": {"flip": True}}
    section = Comparison([run, made(tmp_path, model="deep_cnn", config=pictured)]).section("compare.png")
    table = next(block for block in section.blocks if isinstance(block, Table) and block.header[0] == "setting")
    assert table.header == ["setting", "`first`", "`other`"]
    assert table.rows == [
        ["`model.name`", "task_cnn", "deep_cnn"],
        ["`data.image_size`", "32x32x3", "28x28x1"],
        ["`augment.flip`", "false", "true"],
    ]
    differing = "Besides the model, they differ in image size and augmentation flip, so the model alone may not explain the difference."
    assert differing in text_of(section)
    own = {"name": "own", "file": "mine.py", "function": "build", "source": "import keras\nx = 1\n"}
    other = made(tmp_path, model="own", config={"model": own})
    values = Comparison([run, other]).differing["model.source"]
    assert values == ["-", "2 lines, sha256 eebc3c10"]


# --- settings in words


@pytest.mark.parametrize(
    ("part", "config", "sentence"),
    [
        (
            "optimizer",
            {"optimizer": {"name": "adam", "learning_rate": 0.001, "momentum": 0.9, "weight_decay": 0.0}},
            "`adam` with learning rate 0.001, beta_1 0.9, beta_2 0.999 and epsilon 1e-07",
        ),
        (
            "optimizer",
            {
                "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0005, "clip_norm": 1.0},
                "schedule": {"scaling": "linear", "warmup_epochs": 2.5, "decay": [[12, 0.1], [17, 0.01]]},
            },
            "`sgd` with learning rate 0.1, momentum 0, weight decay 0.0005 and gradients clipped to a norm of 1 (the rate is scaled with "
            "the number of workers (linear), reached over 2.5 epochs of warm-up and multiplied by 0.1 after 12 epochs and 0.01 after "
            "17 epochs)",
        ),
        (
            "augmentation",
            {"augment": {"crop": 4, "flip": True, "shift": 0.1, "rotate": 15.0, "scale": [0.8, 1.2]}},
            "training images were cut out at random after padding by 4 pixels, mirrored at random, moved by up to 10%, turned by up to 15 "
            "degrees and scaled by 0.8 to 1.2",
        ),
        ("reduction", {"reduction": {"name": "auto"}}, "gradients were reduced by `powersgd` (chosen by `auto`)"),
    ],
    ids=["adam's numbers", "decay, clipping, schedule", "augmentation", "chosen reduction"],
)
def test_settings_in_words(part, config, sentence, tmp_path):
    assert getattr(Settings(made(tmp_path, config=config, reduction={"name": "powersgd"})), part) == sentence


@pytest.mark.parametrize(
    ("steps", "sentences"),
    [
        (32, ""),
        (31, " (3,968 of the 4,000 training images)"),
        (10, " (1,280 of the 4,000 training images)"),
        (64, " (2.0 passes over the training images)"),
    ],
)
def test_what_an_epoch_saw_of_the_images(run, steps, sentences):
    run.record.counts["steps_per_epoch"] = steps
    assert Settings(run).passes == sentences


# --- split of a step


def test_steps_in_the_order_of_rank(run):
    assert trained.steps(run) == []
    write_split(run.folder, "node02", (1.0, 80.0, 3.0, 10.0, 6.0))
    write_split(run.folder, "node01", (1.0, 50.0, 3.0, 40.0, 6.0))
    section = trained.steps(run)[0]
    assert [row[0] for row in section.blocks[1].rows] == ["node01", "node02"]
    assert section.blocks[1].rows[1] == ["node02", "1.0", "80.0", "3.0", "10.0", "6.0", "90.0", "100.0"]
    assert text_of(section).startswith("node02 is the slowest: 90 ms of its own work per step, 1.50 times that of node01;")
    assert text_of(section).endswith("6 steps of all hosts together were profiled and timed phase by phase; the figures are medians.")


def test_a_straggler_is_named_with_cause_and_fix(run):
    write_split(run.folder, "node01", (1.0, 50.0, 3.0, 40.0, 6.0))
    slow = {"t": 2.0, "kind": "straggler", "epoch": 1, "rank": 1, "cause": "quota", "own_us": 90_000, "others_us": 60_000}
    with (run.folder / "workers" / "node01" / "metrics.jsonl").open("a") as records:
        records.write(json.dumps({**slow, "value": 150, "usual": 300, "lost": 0}) + "\n")
    words = text_of(trained.steps(run)[0])
    assert "node02 is slow, and the others wait 30 ms of each step for it: it may use 0.15 CPUs, the others 0.30. Fix: raise" in words
    assert "train.batch_sizes=auto. 3 steps of all hosts" in words


# --- the sweep


def test_a_sweeps_analysis_below_the_sections_heading(tmp_path):
    section = SweepAnalysis(make_sweep(tmp_path, "pi", pictures=("speedup.png", "time_median.png"))).section
    assert section.blocks[0].text == "Use 3 workers.\n\n### Times\n\n![Times](pictures/sweep-pi-time_median.png)\n"
    assert [block.file for block in section.blocks[1:]] == ["pictures/sweep-pi-speedup.png"], "what the analysis shows is not shown twice"
    missing = SweepAnalysis(make_sweep(tmp_path, "new", analysis=None)).section
    assert missing.blocks[0].text == (
        "There is no analysis.md of this sweep yet; `ansible-playbook sweep.yml -e sweep=new -e measure=false` writes it."
    )
    assert [block.file for block in missing.blocks[1:]] == ["pictures/sweep-new-time_median.png"]


def test_headings_move_but_not_what_looks_like_one():
    text = "## A\n\n```\n# no\n```\n\n#no\n\n### B\n"
    assert sweeps._demoted(text, 3) == "### A\n\n```\n# no\n```\n\n#no\n\n#### B\n"
    assert sweeps._demoted("###### deep\n\n# top", 3) == "###### deep\n\n### top\n"
    assert sweeps._demoted("no heading", 3) == "no heading\n"


# --- both pages


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def compose(asked, into):
    """Make a report in a new folder, and return that folder."""
    into.mkdir()
    asked.make(into)
    return into


def request(tmp_path, runs, sweep=None, **others):
    project = make_project(tmp_path / "project", ROOT / "templates")
    return report.Request(runs, sweep, project, [tmp_path / "code"], **others)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Files of a report of two runs and a sweep, with names that would be markup and the real pictures."""
    root = tmp_path_factory.mktemp("written")
    run = made(root, "first", tests=TESTS)
    nasty = {"name": NASTY, "classes": [NASTY, "dog"], "train": 5000, "test": 2000, "digest": "0" * 64}
    other = made(root, "second", tests=TESTS, cluster={"dataset": nasty})
    write_split(run.folder, "node01", (1.0, 80.0, 3.0, 10.0, 6.0))
    sweep = make_sweep(root / "sweeps", "pi", analysis=f"# Title\n\n{NASTY}\n\n| a | b |\n| --- | ---: |\n| 1 | 2 |\n")
    return compose(request(root, [run, other], sweep), root / "made")


def test_files_of_a_report(written, tmp_path):
    drawn = ("compare", "history-first", "history-second", "split-first")
    pictures = [f"pictures/{name}{variant}.png" for name in drawn for variant in ("", "-dark")]
    assert set(files(written)) == {"README.md", "first.zip", "index.html", *pictures, "pictures/sweep-pi-time_median.png"}
    names = names_of(written / "first.zip")
    assert names == sorted(names)
    assert {name.partition("/")[0] for name in names} == {"first"}
    assert {name.removeprefix("first/") for name in names} >= {
        "README.md",
        "index.html",
        "pictures/compare.png",
        "runs/first/history.csv",
        "runs/first/evaluations.csv",
        "runs/first/summary.json",
        "runs/first/config.yml",
        "runs/first/cluster.json",
        "runs/first/checkpoints/epoch-0003.keras",
        "runs/first/logs/train/events.out.tfevents.1.host.1",
        "runs/first/logs/validation/events.out.tfevents.1.host.1",
        "runs/second/history.csv",
        "sweeps/pi/timings.csv",
        "sweeps/pi/analysis.md",
        "sweeps/pi/time_median.png",
    }
    assert not any("epoch-0001" in name for name in names)
    readme = (written / "README.md").read_text()
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", readme)
    names = ("compare", "history-first", "split-first", "history-second", "sweep-pi-time_median")
    assert pictures == [f"pictures/{name}.png" for name in names]
    assert all((written / picture).is_file() for picture in pictures)
    rows = [line for line in readme.splitlines() if line.startswith("| ")]
    widths = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
    assert rows
    assert widths <= {3, 4, 8, 9, 10}
    assert "\n\n\n" not in readme


def test_the_page_needs_nothing_else(written):
    html = (written / "index.html").read_text()
    page = Page(html)
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert all(image["src"].startswith("data:image/png;base64,") and image["alt"] for image in page.all("img"))
    assert len(page.all("img")) == 5
    assert not re.search(r"https?://|url\(|@import", html)
    assert ([link["href"] for link in page.all("link")], page.all("script")) == (["data:,"], [])
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    assert not any("style" in attributes for _, attributes in page.tags)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    boxes = [box for box in page.all("div") if box.get("class") == "box"]
    assert len(boxes) == len(page.all("table"))
    assert all(box["aria-label"] and box["tabindex"] == "0" for box in boxes)


def test_names_that_look_like_markup_stay_text(written):
    html = (written / "index.html").read_text()
    assert "<script>" not in html
    assert html.count("&lt;script&gt;") >= 3
    text = "".join(Page(html).text)
    assert "classes (<script>alert('x')</script> | *_[a](b)_* 'c' and dog)" in text
    readme = (written / "README.md").read_text()
    analysis = readme.index("## Sweep")
    assert r"classes (\<script\>alert('x')\</script\> \| \*\_\[a\](b)\_\* 'c' and dog)" in readme
    assert "<script>" not in readme[:analysis].replace("`<script>", "")


@pytest.mark.usefixtures("sketched")
def test_commands_are_shown_as_they_are_typed(tmp_path, run):
    typed = request(tmp_path, [run], typed=lambda text: text.replace("ansible-playbook", "ansible-playbook -i inventory/mine"))
    into = compose(typed, tmp_path / "made")
    for name in ("README.md", "index.html"):
        assert "ansible-playbook -i inventory/mine train.yml -e config=runs/first/config.yml" in (into / name).read_text()


def test_picture_of_elsewhere_is_left_as_it_is(tmp_path):
    html = page._from_markdown("![a](missing.png) ![b](http://127.0.0.1/b.png)", tmp_path)
    assert 'src="missing.png"' in html
    assert 'src="http://127.0.0.1/b.png"' in html


# --- the zip


def names_of(path):
    with zipfile.ZipFile(path) as stream:
        return stream.namelist()


def test_zip_has_fixed_dates_and_same_bytes(tmp_path):
    (tmp_path / "b.keras").write_bytes(b"x" * 1000)
    contents = {"a.txt": b"text" * 100, "b.keras": tmp_path / "b.keras"}
    for name in ("one.zip", "two.zip"):
        archive.write_zip(tmp_path / name, contents)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as stream:
        assert stream.testzip() is None
        assert {info.date_time for info in stream.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert [info.compress_type for info in stream.infolist()] == [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED]
        assert stream.read("b.keras") == b"x" * 1000


def test_zip_that_fails_half_way_leaves_old_one(tmp_path):
    archive.write_zip(tmp_path / "one.zip", {"a.txt": b"old"})
    before = (tmp_path / "one.zip").read_bytes()
    with pytest.raises(FileNotFoundError):
        archive.write_zip(tmp_path / "one.zip", {"a.txt": b"new", "b.txt": tmp_path / "gone"})
    assert (tmp_path / "one.zip").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["one.zip"]


# --- writing it


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put(tmp_path, made_request, number):
    return written_files.put_changed(compose(made_request, tmp_path / f"made {number}"), made_request.folder, report.OURS)


@pytest.mark.usefixtures("sketched")
def test_a_report_is_written_only_where_it_changes(tmp_path):
    first = Run.read(make_run(tmp_path / "runs", "first"))
    asked = request(tmp_path, [first])
    assert put(tmp_path, asked, 1) == ["README.md", "first.zip", "index.html", "pictures/history-first.png"]
    before = files(asked.folder)
    assert put(tmp_path, asked, 2) == []
    assert files(asked.folder) == before
    write_tests(first.folder, TESTS)
    again = report.Request([Run.read(first.folder)], None, asked.project, asked.archives)
    assert put(tmp_path, again, 3) == ["README.md", "first.zip", "index.html"]


@pytest.mark.usefixtures("sketched")
def test_earlier_pictures_go_and_users_files_stay(tmp_path, run):
    both = request(tmp_path, [run, made(tmp_path, "second")], make_sweep(tmp_path / "sweeps", "pi"))
    put(tmp_path, both, 1)
    (run.folder / "report/my.png").write_bytes(b"mine")
    (run.folder / "report/notes.txt").write_bytes(b"mine")
    (run.folder / "report/history-first.png").write_bytes(b"of an earlier version")
    changed = put(tmp_path, report.Request([run], None, both.project, both.archives), 2)
    gone = ["pictures/compare.png", "pictures/history-second.png", "pictures/sweep-pi-time_median.png"]
    assert changed == ["README.md", "first.zip", "history-first.png", "index.html", *gone]
    assert sorted(files(run.folder / "report")) == [
        *("README.md", "first.zip", "index.html", "my.png", "notes.txt", "pictures/history-first.png")
    ]


def write_evaluation(folder, epoch, *outputs, **more):
    """What evaluate.yml leaves of an epoch, beside its row of `write_tests`; without outputs, as of an earlier version."""
    more |= {"outputs": outputs} if outputs else {}
    record = {"epoch": epoch, "split": "test", "metrics": {}, "images": 4, "seconds": 0.8, "evaluated_at": "2026-11-21T05:29:37+00:00"}
    (folder / "evaluate").mkdir(exist_ok=True)
    (folder / "evaluate" / f"epoch-{epoch:04d}.json").write_text(json.dumps(record | more))


def test_tested_classes_of_the_best_epoch_have_rows(run):
    classes = ["cat", "`dog`", "emu"]
    write_evaluation(run.folder, 3, classes=classes, confusion=[[3, 1, 0], [0, 2, 2], [0, 0, 0]])
    (table,) = mistakes.blocks(run)
    assert table.caption == "Epoch 3 by class, on the test images"
    assert table.rows == [["cat", "4", "75.00%", "'dog' (25.0%)"], ["'dog'", "4", "50.00%", "emu (50.0%)"]]


def test_errors_of_numbers_have_histogram_and_table(run):
    write_evaluation(run.folder, 3, errors=ERRORS)
    pictures = evaluations.draw(RunFolder(run.folder), run.evaluation)
    assert {key: path.name for key, path in pictures.items()} == {"errors": "errors-epoch-0003.png"}
    assert mistakes.drawn(run) == pictures
    text, picture, table = mistakes.blocks(run)
    assert text.text == "An error is the prediction minus the target; there are 9."
    assert picture.alt == "Histogram of epoch 3's errors on the test images."
    assert table.rows[0] == ("mean (positive: predicted too high)", "0.1")
    assert table.rows[-1] == ("the largest", "9")


KIND = {"name": "kind $of$ `it`", "classes": ["cat", "dog"], "confusion": [[3, 1], [0, 2]]}
SIZE = {"name": "size", "errors": ERRORS}


def test_each_output_has_its_picture_and_table(run):
    whys = [{"name": name, "why": "its loss is `mine`"} for name in "abcdefg"] + [{"name": "h", "why": "it has no loss of its own"}]
    write_evaluation(run.folder, 3, KIND, SIZE, *whys)
    pictures = evaluations.draw(RunFolder(run.folder), run.evaluation)
    assert [path.name for path in pictures.values()] == ["confusion_kind_of_it_-epoch-0003.png", "errors_size-epoch-0003.png"]
    assert mistakes.drawn(run) == pictures
    matrix, by_class, text, histogram, sizes, unknown = mistakes.blocks(run)
    assert (matrix.file, histogram.file) == ("pictures/confusion_kind_of_it_-first.png", "pictures/errors_size-first.png")
    assert matrix.alt == "Confusion matrix of epoch 3 for kind $of$ 'it' on the test images."
    assert by_class.caption == "Epoch 3 by class for kind $of$ 'it', on the test images"
    assert text.text == "An error for size is the prediction minus the target; there are 9."
    assert histogram.alt == "Histogram of epoch 3's errors for size on the test images."
    assert sizes.caption == "Errors of epoch 3 for size on the test images"
    assert unknown.text == (
        "No table of errors for a, b, c, d, e and 2 more outputs: its loss is 'mine'. No table of errors for h: it has no loss of its own."
    )


def test_what_evaluate_shows_of_several_outputs(run):
    write_evaluation(run.folder, 3, KIND, SIZE, {"name": "mask", "why": "it has several losses"})
    pictures = [{"errors_size": "first.png"}, {"confusion_kind_of_it_": "matrix.png", "errors_size": "sizes.png"}]
    shown = evaluations.show(RunFolder(run.folder), [run.evaluation] * 2, pictures)
    expected = (
        "Epoch 3 by class for kind $of$ `it`\n  class  images",
        "  confusion matrix  matrix.png\n\nErrors of epoch 3 for size, prediction minus target\n",
        "  histogram  first.png\n  histogram  sizes.png\n\nNo table of errors for mask: it has several losses\n\n",
    )
    for words in expected:
        assert words in shown


def test_picture_without_its_numbers_has_no_name(run):
    folder = run.folder / "evaluations"
    folder.mkdir()
    for name in ("errors_size-epoch-0003.png", "errors_size-epoch-0002.png", "mine-epoch-0003.png"):
        (folder / name).touch()
    assert list(mistakes.drawn(run)) == ["errors_size"]
    (picture,) = mistakes.blocks(run)
    assert picture.alt == "Histogram of epoch 3's errors on the test images."


def test_only_the_tables_latest_evaluation_is_shown(run):
    write_evaluation(run.folder, 3, errors=ERRORS, evaluated_at="2020-01-01T00:00:00+00:00")
    write_evaluation(run.folder, 2, errors=ERRORS)
    assert mistakes.blocks(run) == []
    write_evaluation(run.folder, 3, {"name": "", "why": "the model has a train_step of its own"})
    (text,) = mistakes.blocks(run)
    assert text.text == "No table of errors: the model has a train_step of its own."


def test_matrix_of_many_or_untested_classes_is_drawn(tmp_path):
    for count in (3, 60):
        confusion = [[0] * count for _ in range(count)]
        confusion[0][0] = 5
        output = {"name": "$", "classes": [f"$class {number}" for number in range(count)], "confusion": confusion}
        (path,) = evaluations.draw(RunFolder(tmp_path / "a-run"), {"epoch": count, "outputs": [output]}).values()
        assert path.stat().st_size > 5000


def test_confusion_matrix_of_the_best_epoch_is_shown(tmp_path, run):
    (run.folder / "evaluations").mkdir()
    (run.folder / "evaluations/confusion-epoch-0003.png").write_bytes(b"\x89PNG confusion")
    into = compose(request(tmp_path, [run]), tmp_path / "made")
    assert (into / "pictures/confusion-first.png").read_bytes() == b"\x89PNG confusion"
    assert "![Confusion matrix of epoch 3 on the test images.](pictures/confusion-first.png)" in (into / "README.md").read_text()


# --- which runs and which sweep


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs and a sweep as the control node has them."""
    monkeypatch.setattr(project, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(project, "SWEEPS", tmp_path / "sweeps")
    for name in ("one", "two"):
        make_run(tmp_path / "runs", name)
    make_sweep(tmp_path / "sweeps", "pi")
    return tmp_path / "runs"


def test_runs_are_named_once_each_in_order(runs):
    assert write_report._chosen_runs("two, one,two") == [runs / "two", runs / "one"]
    assert len(write_report._chosen_runs(None)) == 1
    assert refusal(write_report._chosen_runs, "one,tow") == "run=tow: no such run (did you mean two?); there are: one, two"
    assert refusal(write_report._chosen_runs, "one,").startswith("run=: a run name is 1 to 64 of A-Z a-z 0-9 . _ - and starts with")


def test_sweep_is_named_or_has_runs_name(runs, tmp_path):
    one = Run.read(runs / "one")
    assert write_report._chosen_sweep(None) is None
    assert write_report._chosen_sweep("pi") == tmp_path / "sweeps/pi"
    assert write_report._sweep_of_that_name([one]) is None
    make_sweep(tmp_path / "sweeps", "one")
    assert write_report._sweep_of_that_name([one]) == tmp_path / "sweeps/one"
    with pytest.raises(ConfigError, match=r"^sweep=pie: no such sweep \(did you mean pi\?\); there are: one, pi$"):
        write_report._chosen_sweep("pie")


def test_without_any_run_the_newest_sweep_is_reported(runs, tmp_path, monkeypatch):
    """Trials of a sweep are not among the runs: report.yml says that there is no run yet."""
    shutil.rmtree(runs)
    sweep = tmp_path / "sweeps/pi"
    assert write_report._chosen_runs(None, sweep) == []
    with pytest.raises(ConfigError, match=r"^there is no run yet"):
        write_report._chosen_runs(None)
    (sweep / "summary.json").write_text("{}")
    assert write_report._chosen_runs(None) == []
    asked = report.Request([], sweep, make_project(tmp_path / "project", ROOT / "templates"), [])
    compose(asked, tmp_path / "made")
    page = (tmp_path / "made/README.md").read_text()
    (title, answer, *_) = [line for line in page.splitlines() if line]
    assert (title, answer) == ("# Report: `sweep pi`", f"- {SweepAnalysis(sweep).short[0]}")
    assert "## Sweep `pi`" in page
    with zipfile.ZipFile(tmp_path / "made/pi.zip") as made:
        assert {"pi/sweeps/pi/analysis.md", "pi/README.md"} <= set(made.namelist())
    monkeypatch.chdir(tmp_path)
    assert write_report._written(asked, ["README.md"], check=False).startswith(
        "Report of sweep pi: written README.md\n  to read     sweeps/pi/report/README.md\n"
    )


def test_end_says_where_things_are_and_what_next(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = report.Request([Run.read(runs / "one")], None, ROOT, [])
    assert write_report._written(asked, ["README.md"], check=False) == (
        "Report of one: written README.md\n"
        "  to read     runs/one/report/README.md\n"
        "  page        runs/one/report/index.html\n"
        "  to hand in  runs/one/report/one.zip\n\n"
        "Next\n"
        "  test images of one        ansible-playbook evaluate.yml -e run=one -e epoch=1,3,5\n"
        "  compare with another run  ansible-playbook report.yml -e run=one,two\n"
        "  curves                    ansible-playbook tensorboard.yml"
    )
    assert write_report._written(asked, [], check=False).startswith("Report of one: nothing has changed since it was written\n")
    assert write_report._written(asked, ["README.md"], check=True).startswith("Report of one: would write README.md\n")


def test_a_run_on_other_data_is_no_comparison(runs, tmp_path):
    path = runs / "two/cluster.json"
    cluster = json.loads(path.read_text())
    cluster["dataset"]["digest"] = "1" * 64
    path.write_text(json.dumps(cluster))
    assert write_report._others(report.Request([Run.read(runs / "one")], None, ROOT, [])) == []
