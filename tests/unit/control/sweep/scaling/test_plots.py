"""Pictures: what is drawn where, from known numbers; the same bytes each time."""

import itertools
import math

import matplotlib as mpl
import pytest
from matplotlib.text import Text
from PIL import Image

from control.campaign.timings import FAILED, STRONG, SUCCEEDED, WEAK, Timing
from control.common import plotting
from control.runs.results import run_plots
from control.sweep.scaling import scaling_plots
from control.sweep.scaling.fitting import Work
from control.sweep.scaling.scaling_plots import RATES
from tests.unit.samples import ERRORS
from trainer.rundir.best_epoch import Monitor
from trainer.worker import telemetry

# What matplotlib warns of; not of what other tests left, which is collected at any moment.
pytestmark = pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")
WORK = Work(WEAK, 64, 1_000_000)


def row(workers, repeat=1, total=100.0, training=80.0, rate=500.0, every=0, scaling=WEAK, epochs=3):
    return Timing(workers, repeat, epochs, total, training, rate, every, scaling, SUCCEEDED, "a b")


def failed(workers, repeat=1, scaling=WEAK):
    return Timing(workers, repeat, 3, None, None, None, 0, scaling, FAILED, "a b")


SWEEP = [
    *(row(1, repeat, total, rate=rate) for repeat, total, rate in ((1, 100.0, 500.0), (2, 101.0, 510.0), (3, 108.0, 490.0))),
    *(row(2, repeat, total, rate=rate) for repeat, total, rate in ((1, 60.0, 900.0), (2, 60.0, 900.0), (3, 66.0, 800.0))),
]
SPLIT = {
    "node1": {"input": 1.0, "forward_backward": 70.0, "compression": 4.0, "all_reduce": 60.0, "apply": 5.0},
    "node2": {"input": 1.0, "forward_backward": 100.0, "all_reduce": 34.0, "apply": 5.0},
}


ACCURACY = Monitor("val_accuracy", highest=True)


def epochs(*accuracies):
    """Rows of a history with these validation accuracies."""
    return [
        {"epoch": number, "loss": 2.0 / number, "accuracy": value / 2, "val_loss": 3.0 / number, "val_accuracy": value}
        for number, value in enumerate(accuracies, 1)
    ]


class KnownFit:
    """1,000 images/s per worker, with an interval of 10% to both sides."""

    def images_per_s(self, workers):
        return 1000.0 * workers

    def interval(self, quantity, workers):
        assert quantity == "images_per_s"
        return 900.0 * workers, 1100.0 * workers


class Drawn:
    """A figure that was drawn."""

    def __init__(self, figure):
        self.figure, self.axes = figure, figure.axes[0]

    def bars(self):
        """Label -> (x, y, half lengths of the bars, None where there is none) of lines with error bars."""
        actual = {}
        for container in self.axes.containers:
            line, _, (bars,) = container.lines
            lengths = [(part[1, 1] - part[0, 1]) / 2 if part.size else None for part in bars.get_segments()]
            actual[container.get_label()] = (list(line.get_xdata()), list(line.get_ydata()), lengths)
        return actual

    def lines(self):
        """Label -> y of every named line."""
        return {line.get_label(): list(line.get_ydata()) for line in self.axes.lines if not line.get_label().startswith("_")}

    def dots(self):
        """(x, y) of all single measurements."""
        return [point for line in self.axes.lines if line.get_marker() == "." for point in zip(*line.get_data(), strict=True)]

    def texts(self):
        return [actual for actual in self.figure.findobj(Text) if actual.get_text()]

    def says(self, wanted):
        return any(wanted in actual.get_text() for actual in self.texts())

    def ticks(self):
        return [label.get_text() for label in self.axes.get_xticklabels()]


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """Call a function of `plots`; give what it drew. Pixels are left out: they take the time."""
    made = []

    class Kept(plotting.Figure):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

        def savefig(self, part, **kwargs):
            part.write_bytes(b"")

    monkeypatch.setattr(plotting, "Figure", Kept)

    def call(function, *args, **kwargs):
        function(*args, path=tmp_path / "picture.png", **kwargs)
        return Drawn(made[-1])

    return call


EVERY = [
    lambda path: scaling_plots.times(SWEEP, "median", path),
    lambda path: scaling_plots.times(SWEEP, "mean", path),
    lambda path: scaling_plots.rates(SWEEP, WORK, KnownFit(), RATES["speedup"], path),
    lambda path: scaling_plots.rates(SWEEP, WORK, KnownFit(), RATES["efficiency"], path),
    lambda path: scaling_plots.rates(SWEEP, WORK, None, RATES["images_per_s"], path),
    lambda path: scaling_plots.checkpoints([row(2, every=50), row(2, every=0, training=70.0)], path),
    lambda path: run_plots.split(SPLIT, path),
    lambda path: run_plots.history(epochs(0.1, 0.5, 0.4), path),
    lambda path: run_plots.compare({"one": epochs(0.1, 0.5), "two": epochs(0.3)}, path, ACCURACY),
    lambda path: run_plots.errors(ERRORS, path, "Errors"),
]


@pytest.mark.parametrize("function", EVERY)
def test_the_same_bytes_whatever_a_persons_matplotlibrc_says(function, tmp_path):
    function(tmp_path / "first.png")
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.facecolor": "black"}):
        function(tmp_path / "second.png")
        assert mpl.rcParams["font.size"] == 20
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()
    with Image.open(tmp_path / "first.png") as picture:
        assert picture.size == (960, 630)
        assert set(picture.info) == {"dpi"}


DIVERGED = epochs(0.1, 0.2)[1] | {"loss": math.nan, "val_loss": math.inf}
SPARSE = [
    lambda path: scaling_plots.times([row(3)], "median", path),
    lambda path: scaling_plots.rates([row(3)], WORK, None, RATES["speedup"], path),
    lambda path: scaling_plots.rates([row(1), row(64)], WORK, None, RATES["images_per_s"], path),
    lambda path: scaling_plots.checkpoints([row(1)], path),
    lambda path: run_plots.split({"node1": {"input": 0.0}}, path),
    lambda path: run_plots.history([*epochs(0.1), DIVERGED], path),
    lambda path: run_plots.history(epochs(0.1), path),
    lambda path: run_plots.errors(ERRORS | {"counts": [9], "below": 0}, path, "Errors"),
]


@pytest.mark.parametrize("function", SPARSE)
def test_little_to_draw_is_drawn_without_a_warning(function, tmp_path):
    function(tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as picture:
        assert len(picture.convert("L").getcolors()) > 2


@pytest.mark.parametrize("before", [{}, {"picture.png": b"before"}])
def test_nothing_is_left_of_a_picture_that_fails(before, tmp_path, monkeypatch):
    def full(self, part, **kwargs):
        part.write_bytes(b"half")
        raise OSError("disk full")

    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(plotting.Figure, "savefig", full)
    with pytest.raises(OSError, match=r"^disk full$"):
        scaling_plots.times(SWEEP, "median", tmp_path / "picture.png")
    assert {actual.name: actual.read_bytes() for actual in tmp_path.iterdir()} == before


@pytest.mark.parametrize("function", EVERY)
def test_letters_are_large_enough_and_boxes_absent(function, draw):
    """No letter is smaller than nine points and no box is drawn."""
    drawn = draw(function)
    assert min(actual.get_fontsize() for actual in drawn.texts()) >= 9
    assert not any(axes.spines[side].get_visible() for axes in drawn.figure.axes for side in ("top", "right"))
    assert drawn.figure.get_suptitle()


@pytest.mark.parametrize(
    ("centre", "middles", "ends", "bars"),
    [
        ("median", [101.0, 60.0], [[100.0, 108.0], [60.0, 66.0]], "from the least to the largest"),
        ("mean", [103.0, 62.0], [[98.6411, 107.3589], [58.5359, 65.4641]], "± standard deviation"),
    ],
)
def test_times_have_a_centre_with_its_bars(draw, centre, middles, ends, bars):
    drawn = draw(scaling_plots.times, SWEEP, centre)
    assert drawn.bars()[centre][:2] == ([1.0, 2.0], pytest.approx(middles))
    (segments,) = (container.lines[2][0].get_segments() for container in drawn.axes.containers)
    assert [sorted(segment[:, 1].tolist()) for segment in segments] == [pytest.approx(end, abs=1e-4) for end in ends]
    assert drawn.figure.get_suptitle() == f"End-to-end time by workers: {centre}"
    assert drawn.figure.get_supxlabel() == f"Dots: single measurements. Bars: {bars}."
    assert (drawn.axes.get_xlabel(), drawn.axes.get_ylabel(), drawn.ticks()) == ("workers", "end-to-end time (s)", ["1", "2"])
    assert drawn.axes.get_title(loc="left") == "weak scaling, 3 epochs, saved every epoch"
    low, high = drawn.axes.get_ylim()
    assert (low, high > 108) == (0, True)


def test_every_measurement_is_a_dot_of_its_own(draw):
    dots = draw(scaling_plots.times, SWEEP, "median").dots()
    assert sorted(y for _, y in dots) == [60.0, 60.0, 66.0, 100.0, 101.0, 108.0]
    assert len({x for x, _ in dots}) == 6
    assert [round(x) for x, _ in dots] == [1, 1, 1, 2, 2, 2]


def test_one_line_a_scaling(draw):
    strong = [row(workers, repeat, 50.0, scaling=STRONG) for workers in (1, 2) for repeat in (1, 2)]
    drawn = draw(scaling_plots.times, [*SWEEP, *strong], "median")
    bars = drawn.bars()
    assert list(bars) == ["median, strong scaling", "median, weak scaling"]
    assert bars["median, strong scaling"][1] == [50.0, 50.0]
    one, two = (container.lines[0] for container in drawn.axes.containers)
    for look in ("get_linestyle", "get_marker", "get_color"):
        assert getattr(one, look)() != getattr(two, look)()
    assert not set(one.get_xdata()) & set(two.get_xdata())
    assert drawn.axes.get_title(loc="left") == "3 epochs, saved every epoch"


def test_incomparable_measurements_are_never_one_line(draw):
    drawn = draw(scaling_plots.times, [row(1), row(1, every=50), row(1, every=50, epochs=1)], "median")
    assert list(drawn.bars()) == [
        "median, 3 epochs, saved every epoch",
        "median, 1 epoch, saved every 50 steps",
        "median, 3 epochs, saved every 50 steps",
    ]


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ([], "Dots: single measurements. Bars: from the least to the largest."),
        ([failed(3)], "Dots: single measurements. Bars: from the least to the largest. 1 failed trial left out."),
        ([failed(3), failed(3, 2)], "Dots: single measurements. Bars: from the least to the largest. 2 failed trials left out."),
    ],
)
def test_failed_trials_are_left_out_and_counted(draw, more, note):
    drawn = draw(scaling_plots.times, [*SWEEP, *more], "median")
    assert drawn.figure.get_supxlabel() == note
    assert drawn.ticks() == ["1", "2"]


@pytest.mark.parametrize("centre", ["median", "mean"])
def test_a_single_measurement_has_no_bar(draw, centre):
    drawn = draw(scaling_plots.times, [row(3)], centre)
    ((_, values, lengths),) = drawn.bars().values()
    assert (values, lengths) == ([100.0], [None])
    assert drawn.ticks() == ["3"]
    assert drawn.figure.get_supxlabel() == "Dots: single measurements. No bars: one repeat each."


TWO_AND_FIVE = [row(2, rate=900.0), row(5, rate=1800.0)]
STRONG_ROWS = [row(1, rate=7.0, scaling=STRONG), row(3, rate=21.0, scaling=STRONG)]


@pytest.mark.parametrize(
    ("quantity", "rows", "values", "ideal", "label"),
    [
        ("speedup", SWEEP, [1.0, 1.8], [1.0, 2.0], "speedup over 1 worker (times)"),
        ("speedup", TWO_AND_FIVE, [1.0, 2.0], [1.0, 1.5, 2.0, 2.5], "speedup over 2 workers (times)"),
        ("efficiency", SWEEP, [100.0, 90.0], [100.0, 100.0], "efficiency over 1 worker (%)"),
        ("efficiency", TWO_AND_FIVE, [100.0, 80.0], [100.0] * 4, "efficiency over 2 workers (%)"),
        ("images_per_s", STRONG_ROWS, [7.0, 21.0], [7.0, 14.0, 21.0], "throughput (images/s)"),
    ],
)
def test_rates_are_relative_to_the_fewest_workers(draw, quantity, rows, values, ideal, label):
    drawn = draw(scaling_plots.rates, rows, WORK, None, RATES[quantity])
    fewest = rows[0].workers
    assert drawn.bars()["median"][1] == pytest.approx(values)
    assert drawn.lines() == {f"ideal: in proportion to {fewest} worker{'s' if fewest > 1 else ''}": pytest.approx(ideal)}
    assert (drawn.axes.get_ylabel(), drawn.axes.get_ylim()[0]) == (label, 0)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (WORK, "weak scaling, 3 epochs, saved every epoch, 64 images per worker and step"),
        (Work(STRONG, 1, 1000), "weak scaling, 3 epochs, saved every epoch, 1 image per step of all workers"),
    ],
)
def test_batch_is_part_of_the_subtitle(draw, work, words):
    assert draw(scaling_plots.rates, SWEEP, work, None, RATES["speedup"]).axes.get_title(loc="left") == words


@pytest.mark.parametrize(
    ("quantity", "line", "low", "high"),
    [
        ("images_per_s", [1000, 2000], [900, 1800], [1100, 2200]),
        ("speedup", [2.0, 4.0], [1.8, 3.6], [2.2, 4.4]),
        ("efficiency", [200, 200], [180, 180], [220, 220]),
    ],
)
def test_the_fit_and_its_interval(draw, quantity, line, low, high):
    drawn = draw(scaling_plots.rates, SWEEP, WORK, KnownFit(), RATES[quantity])
    assert drawn.lines()["fit"] == pytest.approx(line)
    ((band,),) = [[actual for actual in drawn.axes.collections if actual.get_label() == "95% interval of the fit"]]
    (path,) = band.get_paths()
    actual = {at: [y for x, y in path.vertices if x == at] for at in (1.0, 2.0)}
    assert [min(actual[at]) for at in (1.0, 2.0)] == pytest.approx(low)
    assert [max(actual[at]) for at in (1.0, 2.0)] == pytest.approx(high)
    assert drawn.axes.containers[0].lines[0].get_linestyle() == "None"
    assert [actual.get_text() for actual in drawn.axes.get_legend().get_texts()] == [
        "ideal: in proportion to 1 worker",
        "95% interval of the fit",
        "fit",
        "median",
    ]


def test_many_workers_have_few_whole_ticks(draw):
    drawn = draw(scaling_plots.rates, [row(1), row(64)], WORK, None, RATES["images_per_s"])
    ticks = drawn.axes.get_xticks()
    assert 2 < len(ticks) <= 12
    assert all(tick == int(tick) for tick in ticks)


def test_checkpoints_stand_on_a_logarithmic_scale(draw):
    rows = [row(2, repeat, training=90.0 - every / 100, every=every) for every in (1000, 0, 10, 100) for repeat in (1, 2)]
    drawn = draw(scaling_plots.checkpoints, rows)
    ((at, values, _),) = drawn.bars().values()
    assert at == pytest.approx([1.0, 2.0, 3.0, 3.5])
    assert values == pytest.approx([89.9, 89.0, 80.0, 90.0])
    assert drawn.ticks() == ["10", "100", "1,000", "epoch's end"]
    assert drawn.axes.get_xlabel() == "steps between saved states (logarithmic)"
    assert drawn.axes.get_title(loc="left") == "weak scaling, 2 workers, 3 epochs"
    assert drawn.figure.get_supxlabel().endswith(" The seconds do not start at 0.")


def test_checkpoints_of_several_numbers_of_workers(draw):
    rows = [row(workers, every=every) for workers in (1, 3) for every in (50, 200)]
    assert list(draw(scaling_plots.checkpoints, rows).bars()) == ["median, 1 worker", "median, 3 workers"]
    assert draw(scaling_plots.checkpoints, [row(1)]).ticks() == ["epoch's end"]


def test_phases_of_a_step_are_stacked(draw):
    drawn = draw(run_plots.split, SPLIT)
    assert [label.get_text() for label in drawn.axes.get_yticklabels()] == ["node1", "node2"]
    bars = {actual.get_label(): [(bar.get_x(), bar.get_width()) for bar in actual] for actual in drawn.axes.containers}
    assert bars == {
        "input wait": [(0.0, 1.0), (0.0, 1.0)],
        "forward and backward": [(1.0, 70.0), (1.0, 100.0)],
        "compression": [(71.0, 4.0), (101.0, 0.0)],
        "all-reduce, with waiting": [(75.0, 60.0), (101.0, 34.0)],
        "apply": [(135.0, 5.0), (135.0, 5.0)],
    }
    assert drawn.axes.get_xlabel() == "time per step (ms)"
    assert drawn.says("140")
    top, bottom = (drawn.axes.transData.transform((0, place))[1] for place in (0, 1))
    assert top > bottom


def test_phases_are_those_that_workers_record():
    assert tuple(run_plots.PHASES) == tuple(telemetry.PHASES)


def test_neighbours_in_a_bar_differ_without_colour():
    looks = [(lightness(colour), hatch) for _, colour, hatch in run_plots.PHASES.values()]
    assert all(one[1] != two[1] or abs(one[0] - two[0]) > 0.2 for one, two in itertools.pairwise(looks))
    assert abs(looks[1][0] - looks[-1][0]) > 0.2


def test_neighbouring_lines_differ_without_colour():
    inks = [plotting.line_style(index) for index in range(60)]
    assert len({tuple(ink.values()) for ink in inks}) == 60
    for one, two in itertools.pairwise(inks):
        assert one["linestyle"] != two["linestyle"]
        assert one["marker"] != two["marker"]
        assert abs(lightness(one["color"]) - lightness(two["color"])) > 0.1


def lightness(colour):
    red, green, blue = mpl.colors.to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_many_hosts_make_a_taller_picture(draw):
    assert draw(run_plots.split, {f"node{number}": SPLIT["node1"] for number in range(18)}).figure.get_figheight() == pytest.approx(7.7)


def test_history_of_both_splits_with_the_best_epoch(draw):
    drawn = draw(run_plots.history, epochs(0.1, 0.5, 0.4))
    assert drawn.lines() == {
        "training": pytest.approx([5, 25, 20]),
        "validation": pytest.approx([10, 50, 40]),
        "best: epoch 2, validation accuracy 50.0%": pytest.approx([50]),
    }
    lower = Drawn(drawn.figure)
    lower.axes = drawn.figure.axes[1]
    assert list(lower.lines().values()) == [pytest.approx([2, 1, 2 / 3]), pytest.approx([3, 1.5, 1]), pytest.approx([1.5])]
    assert [axes.get_ylabel() for axes in drawn.figure.axes] == ["accuracy (%)", "loss"]
    assert lower.axes.get_xlabel() == "epoch"
    assert all(tick == int(tick) for tick in lower.axes.get_xticks())


def test_runs_are_compared(draw):
    drawn = draw(run_plots.compare, {"task": epochs(0.1, 0.5, 0.5), "deep": epochs(0.3)}, decides=ACCURACY)
    assert drawn.lines() == {
        "task: best 50.0%, epoch 3": pytest.approx([10, 50, 50]),
        "deep: best 30.0%, epoch 1": pytest.approx([30]),
    }
    (legend,) = drawn.figure.legends
    assert [actual.get_text() for actual in legend.get_texts()] == list(drawn.lines())


def test_runs_are_compared_by_another_metric(draw):
    drawn = draw(run_plots.compare, {"task": epochs(0.1, 0.5), "deep": epochs(0.3)}, decides=Monitor("val_loss", highest=False))
    assert drawn.lines() == {"task: best 1.5000, epoch 2": pytest.approx([3, 1.5]), "deep: best 3.0000, epoch 1": pytest.approx([3])}
    assert drawn.axes.get_ylabel() == "validation loss"


def test_errors_have_limits_of_half_and_most(draw):
    drawn = draw(run_plots.errors, ERRORS, title="a-run, epoch 3")
    assert [bar.get_height() for bar in drawn.axes.patches] == [1, 5, 2]
    assert [text.get_text() for text in drawn.figure.legends[0].get_texts()] == ["half within ±0.4", "95% within ±1.5"]
    assert drawn.says("9 values, 1 of them beyond the axis; the largest is 9")
    assert drawn.axes.get_xlim() == (-2, 2)
