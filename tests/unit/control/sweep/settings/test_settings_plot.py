"""The picture of trials: scales, the best line, hostile labels, the same bytes each time."""

import json

import pytest
from matplotlib.figure import Figure
from PIL import Image

from control.sweep.settings import settings_plot
from control.sweep.settings.trial_settings import Result
from trainer.rundir.best_epoch import Monitor

# What matplotlib warns of; not of what other tests left, which is collected at any moment.
pytestmark = pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")
ACCURACY, LOSS = Monitor("val_accuracy", True), Monitor("val_loss", False)


def row(number, value, metric="val_accuracy", state="SUCCEEDED", **values):
    numbers = (value, 1, 3, 41.0, 30.0, 1200.0)
    return Result(f"pi.{number}", state, metric, *numbers, "a b", json.dumps(values), "")


ROWS = [row(number, 0.9 - number / 10, rate=10.0**-number, batch=32 * (1 + number % 2), name="sgd") for number in range(4)]


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draw rows; returns the figure and the file."""
    figures = []
    save = Figure.savefig

    def savefig(self, *arguments, **named):
        figures.append(self)
        return save(self, *arguments, **named)

    monkeypatch.setattr(Figure, "savefig", savefig)

    def draw(rows, keys, metric):
        settings_plot.parallel(rows, keys, metric, tmp_path / "settings.png")
        return figures[-1], tmp_path / "settings.png"

    return draw


def trials(figure):
    """Heights of each trial's line, the best first."""
    lines = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    return [[round(float(y), 3) for y in line.get_ydata()] for line in reversed(lines)]


def words(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_each_trial_is_a_line_over_all_axes(drawn):
    figure, path = drawn(ROWS, ["rate", "batch", "name"], ACCURACY)
    assert trials(figure) == [[1, 0, 0.5, 1], [0.667, 1, 0.5, 0.667], [0.333, 0, 0.5, 0.333], [0, 1, 0.5, 0]]
    assert {"rate (log)", "batch", "name", "validation accuracy", "sgd", "32", "64", "0.001"} <= set(words(figure))
    colours = [line.get_color() for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert colours[-1] == settings_plot.BEST["color"]
    with Image.open(path) as image:
        assert image.size == (960, 630)
    before = path.read_bytes()
    assert drawn(ROWS, ["rate", "batch", "name"], ACCURACY)[1].read_bytes() == before


def test_better_end_is_at_the_top(drawn):
    rows = [row(number, value, "val_loss", rate=value) for number, value in enumerate((0.2, 0.5, 0.8))]
    assert [heights[-1] for heights in trials(drawn(rows, ["rate"], LOSS)[0])] == [1, 0.5, 0]
    assert trials(drawn(ROWS[:1], ["rate"], ACCURACY)[0]) == [[0.5, 0.5]]


def test_trial_without_result_is_left_out_and_said(drawn):
    rows = [*ROWS, row(9, 0.99, state="FAILED", rate=9.0, batch=1, name="x"), row(8, 0.99, "loss", rate=9.0, batch=1, name="x")]
    figure, _ = drawn(rows, ["rate", "batch", "name"], ACCURACY)
    assert len(trials(figure)) == 4
    assert "2 trials without a result left out." in " ".join(figure._supxlabel.get_text().split())


@pytest.mark.parametrize("value", ["$x", r"$\frac{$", "a" * 200, "", "\n", "%s", True, None, [1, 2], {"a": 1}])
def test_hostile_values_are_labels(drawn, value):
    figure, _ = drawn([row(1, 0.5, word=value), row(2, 0.4, word="b")], ["word"], ACCURACY)
    assert sorted(heights[0] for heights in trials(figure)) == [0.25, 0.75]


def test_close_labels_are_thinned(drawn):
    rows = [row(number, 0.5, size=size) for number, size in enumerate((1, 1.01, 1.02, 20))]
    assert {"1", "20"} <= set(words(drawn(rows, ["size"], ACCURACY)[0]))
    assert "1.01" not in words(drawn(rows, ["size"], ACCURACY)[0])
