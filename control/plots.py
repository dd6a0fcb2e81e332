"""Pictures of a sweep and of a run: PNG files, the same bytes for the same numbers, readable in print and in greyscale."""

import contextlib
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from control.sweep.scaling import Fit, Work
from control.sweep.timings import WEAK, Timing
from control.text import count
from trainer.errors import LockstepError
from trainer.files import replacing

WIDTH_IN, HEIGHT_IN, DPI = 6.4, 4.2, 150
STYLE = {
    "font.size": 10,
    "figure.titlesize": 11,
    "axes.titlesize": 9,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "lines.markersize": 5.5,
    "errorbar.capsize": 4,
    "hatch.linewidth": 0.7,
}
# The lengths have no common divisor, so 60 lines differ; neighbours differ in lightness, dashes and marker, not only in hue.
COLOURS = ("#0b4f8a", "#d98200", "#7a1f5c", "#3f9c6b")
DASHES = ("-", "--", "-.")
MARKERS = ("o", "s", "^", "D", "v")
IDEAL = {"color": "#444444", "linestyle": ":", "linewidth": 1.5}
FIT = {"color": "#a33a00", "linestyle": "--", "linewidth": 1.5}
BAND = {"color": "#f0c9ae", "linewidth": 0.0, "zorder": 1}
MANY_TICKS, MANY_EPOCHS = 16, 24

PHASES = {
    "input": ("input wait", "#ffffff", "...."),
    "forward_backward": ("forward and backward", "#9dbfdd", ""),
    "compression": ("compression", "#f3dfa8", "\\\\\\\\"),
    "all_reduce": ("all-reduce, with waiting", "#d98200", "////"),
    "apply": ("apply", "#4a4a4a", ""),
}
"""Phases of a step, in order: name, colour and hatching."""


@dataclass(frozen=True)
class _Series:
    """Measurements of trials that differ only in the x axis (and in the repeat)."""

    label: str
    """Distinguishes it from other series; empty for a single one."""
    values: dict[int, list[float]]
    """By x value, in the order of repeats."""


@dataclass(frozen=True)
class _Base:
    """The base of speedup and efficiency: the fewest workers measured."""

    workers: int
    images_per_s: float
    """Median."""

    def __str__(self) -> str:
        return count(self.workers, "worker")


@dataclass(frozen=True)
class _Centre:
    """The centre of several measurements and its bars; a single measurement has no bars."""

    name: str
    of: Callable[[list[float]], float]
    spread: Callable[[list[float]], tuple[float, float]]
    """Length of the bar below and above."""
    bars: str
    """What the bars show."""


def _to_the_ends(values: list[float]) -> tuple[float, float]:
    middle = statistics.median(values)
    return (middle - min(values), max(values) - middle) if len(values) > 1 else (math.nan, math.nan)


def _deviation(values: list[float]) -> tuple[float, float]:
    """Standard deviation of the sample."""
    return (statistics.stdev(values),) * 2 if len(values) > 1 else (math.nan, math.nan)


MEDIAN = _Centre("median", statistics.median, _to_the_ends, "from the least to the largest")
MEAN = _Centre("mean", statistics.fmean, _deviation, "± standard deviation")


def _times(centre: _Centre, timings: Sequence[Timing], path: Path) -> None:
    """Draw end-to-end seconds against workers: every measurement, its centre, bars."""
    series = _series(timings, "seconds_end_to_end", "workers")
    with picture(path) as figure:
        axes = one_panel(figure, f"End-to-end time by workers: {centre.name}", _shared(timings, "workers"), "end-to-end time (s)")
        positions = _worker_axis(axes, series)
        _measurements(axes, series, positions, centre)
        start_at_zero(axes)
        _finish(figure, axes, _notes(timings, series, centre))


time_median, time_mean = (functools.partial(_times, centre) for centre in (MEDIAN, MEAN))


@dataclass(frozen=True)
class _View:
    """A way to show images/s; `{}` in its texts is the base."""

    title: str
    label: str
    factor: Callable[[_Base, int], float]
    """Factor for the images/s of a number of workers."""


def _rates(view: _View, timings: Sequence[Timing], work: Work, fit: Fit | None, path: Path) -> None:
    """Draw images/s against workers, beside the ideal; measurements, fit and its interval share one base.

    Args:
        view: how to show images/s.
        timings: rows of a sweep; other scalings than `work`'s are left out.
        work: the work of a step.
        fit: drawn from the fewest to the most workers measured; None without a conclusion.
        path: of the PNG file.
    """
    chosen = [row for row in timings if row.scaling == work.scaling]
    series = _series(chosen, "images_per_s", "workers")
    base = _base(series)
    batch = f"{count(work.batch, 'image')} per {'worker and step' if work.scaling == WEAK else 'step of all workers'}"
    with picture(path) as figure:
        axes = one_panel(figure, view.title.format(base), f"{_shared(chosen, 'workers')}, {batch}", view.label.format(base))
        positions = _worker_axis(axes, series)
        counts = range(min(positions), max(positions) + 1)
        factor = functools.partial(view.factor, base)
        ideal = [factor(count) * count * base.images_per_s / base.workers for count in counts]
        axes.plot(counts, ideal, label=f"ideal: in proportion to {base}", **IDEAL)
        _measurements(axes, _scaled(series, factor), positions, MEDIAN, joined=not fit)
        if fit:
            _fitted(axes, fit, counts, factor)
        start_at_zero(axes)
        _finish(figure, axes, _notes(chosen, series, MEDIAN))


_SPEEDUP = _View("Speedup by workers: images/s relative to {}", "speedup over {} (times)", lambda base, _: 1 / base.images_per_s)
_EFFICIENCY = _View(
    "Efficiency by workers: images/s per worker relative to {}",
    "efficiency over {} (%)",
    lambda base, workers: 100 * base.workers / (workers * base.images_per_s),
)
_THROUGHPUT = _View("Throughput by workers: training images/s of all of them", "throughput (images/s)", lambda *_: 1.0)
speedup, efficiency, throughput = (functools.partial(_rates, view) for view in (_SPEEDUP, _EFFICIENCY, _THROUGHPUT))


def _base(series: Sequence[_Series]) -> _Base:
    fewest = min(count for one in series for count in one.values)
    return _Base(fewest, statistics.median([value for one in series for value in one.values.get(fewest, [])]))


def _scaled(series: Sequence[_Series], factor: Callable[[int], float]) -> list[_Series]:
    return [_Series(one.label, {count: [value * factor(count) for value in some] for count, some in one.values.items()}) for one in series]


def _fitted(axes: Any, fit: Fit, counts: Sequence[int], factor: Callable[[int], float]) -> None:
    """The fit's line and its interval."""
    ends = [fit.interval("images_per_s", count) for count in counts]
    low, high = ([factor(count) * end[side] for count, end in zip(counts, ends, strict=True)] for side in (0, 1))
    axes.fill_between(counts, low, high, label="95% interval of the fit", **BAND)
    axes.plot(counts, [factor(count) * fit.images_per_s(count) for count in counts], label="fit", **FIT)


def checkpoints(timings: Sequence[Timing], path: Path) -> None:
    """Draw training seconds against the steps between saved states (logarithmic; 0, only at an epoch's end, is on the right).

    The seconds do not start at 0, because the differences are small; the picture says so.
    """
    series = _series(timings, "seconds_training", "checkpoint_every")
    with picture(path) as figure:
        axes = one_panel(figure, "What saved states cost: median training time", _shared(timings, "checkpoint_every"), "training time (s)")
        positions = _interval_axis(axes, series)
        _measurements(axes, series, positions, MEDIAN)
        _finish(figure, axes, f"{_notes(timings, series, MEDIAN)} The seconds do not start at 0.")


def split(phases: Mapping[str, Mapping[str, float]], path: Path, subtitle: str = "") -> None:
    """Draw the phases of a step: one stacked bar per host.

    Args:
        phases: name of a bar, such as its host -> phase (of `PHASES`) -> milliseconds per step.
        path: of the PNG file.
        subtitle: a smaller line below the title.
    """
    _known_phases(phases)
    hosts = list(phases)
    with picture(path, _tall(len(hosts), 8, 0.35)) as figure:
        axes = one_panel(figure, "What a training step is made of", subtitle, "")
        axes.set_xlabel("time per step (ms)")
        axes.grid(visible=False, axis="y")
        ends = _stacked(axes, phases)
        for row, end in enumerate(ends):
            axes.annotate(f"{end:,.0f}", (end, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_yticks(range(len(hosts)), hosts)
        middle, half = (len(hosts) - 1) / 2, max(len(hosts), 3) / 2
        axes.set_ylim(middle + half, middle - half)
        axes.set_xlim(right=1.08 * max(ends) or 1.0)
        figure.legend(loc="outside lower center", ncols=3)


def _stacked(axes: Any, phases: Mapping[str, Mapping[str, float]]) -> list[float]:
    """Draw bars of all phases in order; returns the end of each host's bar."""
    ends = [0.0] * len(phases)
    for phase, (label, colour, hatch) in PHASES.items():
        widths = [milliseconds.get(phase, 0.0) for milliseconds in phases.values()]
        axes.barh(range(len(ends)), widths, 0.62, ends, label=label, color=colour, hatch=hatch, edgecolor="#222222", linewidth=0.7)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    return ends


def _known_phases(phases: Mapping[str, Mapping[str, float]]) -> None:
    if not phases:
        raise LockstepError("no picture of a step: no host has a split of its steps; set telemetry.profile_every above 0 and train")
    for host, milliseconds in phases.items():
        if unknown := set(milliseconds) - set(PHASES):
            raise LockstepError(f"no picture of a step: {host} has the phase {min(unknown)!r}; known are {', '.join(PHASES)}")


def history(rows: Sequence[Mapping[str, Any]], path: Path, best_epoch: int | None) -> None:
    """Draw accuracy and loss of both splits over the epochs of a run, with the best epoch marked.

    Args:
        rows: from `trainer.records.read_history`.
        path: of the PNG file.
        best_epoch: one of the rows', or None for no mark.
    """
    best = _row_of(rows, best_epoch)
    with picture(path) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        write_title(figure, "Accuracy and loss by epoch")
        for axes, key, label, factor in ((upper, "accuracy", "accuracy (%)", 100.0), (lower, "loss", "loss", 1.0)):
            _curves(axes, {"training": (rows, key), "validation": (rows, f"val_{key}")}, factor)
            _mark(axes, best, f"val_{key}", factor)
            axes.set_ylabel(label)
        _epoch_axis(lower, [row["epoch"] for row in rows])
        figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _row_of(rows: Sequence[Mapping[str, Any]], epoch: int | None) -> Mapping[str, Any] | None:
    if not rows:
        raise LockstepError("no picture of a run's history: no epoch is finished; train at least one")
    chosen = next((row for row in rows if row["epoch"] == epoch), None)
    if epoch is not None and chosen is None:
        epochs = f"{rows[0]['epoch']} to {rows[-1]['epoch']}"
        raise LockstepError(
            f"no picture of a run's history: best epoch {epoch} is not among its epochs {epochs}; give one of those or None"
        )
    return chosen


def _mark(axes: Any, best: Mapping[str, Any] | None, key: str, factor: float) -> None:
    if best is None:
        return
    value = best[key] * factor
    axes.axvline(best["epoch"], color="#888888", linewidth=1.0, zorder=1)
    axes.plot([best["epoch"]], [value], "*", color="#a33a00", markersize=11, zorder=5, label=_best_label(best))
    axes.margins(y=0.12)


def _best_label(best: Mapping[str, Any]) -> str:
    return f"best: epoch {best['epoch']}, validation accuracy {best['val_accuracy']:.1%}"


def compare(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw the validation accuracy of several runs over their epochs; runs without a finished epoch are named and left out.

    Args:
        runs: name -> rows from `trainer.records.read_history`.
        path: of the PNG file.
    """
    drawn = {name: rows for name, rows in runs.items() if rows}
    if not drawn:
        raise LockstepError(f"no picture of {count(len(runs), 'run')}: none has a finished epoch; train at least one")
    with picture(path, _tall(len(runs), 4, 0.18)) as figure:
        axes = one_panel(figure, "Validation accuracy by epoch", "", "validation accuracy (%)")
        _curves(axes, {_with_best(name, rows): (rows, "val_accuracy") for name, rows in drawn.items()}, 100.0)
        for name in (name for name in runs if name not in drawn):
            axes.plot([], [], " ", label=f"{name}: no finished epoch")
        _epoch_axis(axes, [row["epoch"] for rows in drawn.values() for row in rows])
        figure.legend(loc="outside lower left")


def _with_best(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    best = max(rows, key=lambda row: (row["val_accuracy"], -row["epoch"]))
    return f"{name}: best {best['val_accuracy']:.1%}, epoch {best['epoch']}"


def _curves(axes: Any, lines: Mapping[str, tuple[Sequence[Mapping[str, Any]], str]], factor: float) -> None:
    """One line per label: a key of the rows, times `factor`, over their epochs."""
    for index, (label, (rows, key)) in enumerate(lines.items()):
        epochs = [row["epoch"] for row in rows]
        every = math.ceil(len(epochs) / MANY_EPOCHS)
        axes.plot(
            epochs, [row[key] * factor for row in rows], label=label, markevery=every, markersize=4, linewidth=1.5, **line_style(index)
        )


def _epoch_axis(axes: Any, epochs: Sequence[int]) -> None:
    axes.set_xlabel("epoch")
    axes.set_xlim(min(epochs) - 0.5, max(epochs) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


@contextlib.contextmanager
def picture(path: Path, height: float = HEIGHT_IN, width: float = WIDTH_IN) -> Iterator[Any]:
    """Yield an empty figure; write it to `path`, whole or not at all, if the block succeeds."""
    with mpl.rc_context():
        # The user's own matplotlibrc must not change the look of a report.
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        yield figure
        with replacing(path) as part:
            figure.savefig(part, format="png", metadata={"Software": None})


def one_panel(figure: Any, title: str, subtitle: str, label: str) -> Any:
    """Axes with a title, a smaller line with what all have in common, and the name and unit of y."""
    axes = figure.subplots()
    write_title(figure, title)
    axes.set_title(subtitle, loc="left", color="#333333")
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    return axes


def start_at_zero(axes: Any) -> None:
    """Start y at 0, so that ratios can be read off, with some room above the highest mark."""
    axes.set_ylim(0, 1.06 * axes.dataLim.y1)


def write_title(figure: Any, title: str) -> None:
    """Write the title at the left edge."""
    figure.suptitle(title, x=0.01, ha="left")


def _finish(figure: Any, axes: Any, notes: str) -> None:
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend()
    footnote(figure, notes)


def footnote(figure: Any, notes: str) -> None:
    """Write notes below the axes, if there are any."""
    if notes:
        figure.supxlabel(notes.strip(), x=0.01, ha="left", fontsize=9, color="#333333")


def _tall(rows: int, fitting: int, each: float) -> float:
    """Height (inches) of a picture with `rows` rows, of which `fitting` fit into the usual one."""
    return HEIGHT_IN + each * max(0, rows - fitting)


def line_style(index: int) -> dict[str, str]:
    """Colour, dashes and marker of a line."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def _series(timings: Sequence[Timing], quantity: str, over: str) -> list[_Series]:
    """Measured rows as one series per incomparable group; labelled by their differences."""
    measured = sorted((row for row in timings if row.measured), key=lambda row: row.trial)
    if not measured:
        trials = count(len(timings), "trial")
        raise LockstepError(f"no picture of {quantity}: none of {trials} succeeded; measure with ansible-playbook sweep.yml")
    differing = [name for name in _SETTINGS if name != over and not _same(measured, name)]
    grouped: dict[str, dict[int, list[float]]] = {}
    for row in measured:
        values = grouped.setdefault(_settings(row, differing), {})
        values.setdefault(getattr(row, over), []).append(_value(row, quantity))
    return [_Series(label, values) for label, values in grouped.items()]


def _value(row: Timing, quantity: str) -> float:
    value: float | None = getattr(row, quantity)
    if not value:
        which = f"{count(row.workers, 'worker')}, repeat {row.repeat}"
        raise LockstepError(f"timings.csv: {which} is {row.state} with {quantity} {value}; remove that row to measure its trial anew")
    return value


def _shared(timings: Sequence[Timing], over: str) -> str:
    """What all measured trials have in common."""
    measured = [row for row in timings if row.measured]
    return _settings(measured[0], [name for name in _SETTINGS if name != over and _same(measured, name)])


def _same(measured: Sequence[Timing], name: str) -> bool:
    return len({getattr(row, name) for row in measured}) == 1


_SETTINGS: dict[str, Callable[[Timing], str]] = {
    "scaling": lambda row: f"{row.scaling} scaling",
    "workers": lambda row: count(row.workers, "worker"),
    "epochs": lambda row: count(row.epochs, "epoch"),
    "checkpoint_every": lambda row: f"saved every {count(row.checkpoint_every, 'step')}" if row.checkpoint_every else "saved every epoch",
}


def _settings(row: Timing, names: Sequence[str]) -> str:
    return ", ".join(say(row) for name, say in _SETTINGS.items() if name in names)


def _notes(timings: Sequence[Timing], series: Sequence[_Series], centre: _Centre) -> str:
    """The meaning of dots and bars, and the number of missing trials."""
    repeats = sorted({len(some) for one in series for some in one.values.values()})
    dots = "Dots: single measurements."
    bars = f" Bars: {centre.bars}." if repeats[-1] > 1 else " No bars: one repeat each."
    failed = sum(not row.measured for row in timings)
    return f"{dots}{bars}" + (f" {count(failed, 'failed trial')} left out." if failed else "")


def _worker_axis(axes: Any, series: Sequence[_Series]) -> dict[int, float]:
    """Whole numbers of workers on the x axis; returns the position of each measured one."""
    counts = sorted({count for one in series for count in one.values})
    axes.set_xlabel("workers")
    if counts[-1] - counts[0] < MANY_TICKS:
        axes.set_xticks(range(counts[0], counts[-1] + 1))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    margin = max(0.5, 0.03 * (counts[-1] - counts[0]))
    axes.set_xlim(counts[0] - margin, counts[-1] + margin)
    return {count: float(count) for count in counts}


def _interval_axis(axes: Any, series: Sequence[_Series]) -> dict[int, float]:
    """Steps between saved states on a logarithmic scale; returns the position of each."""
    steps = sorted({step for one in series for step in one.values if step})
    positions = {step: math.log10(step) for step in steps}
    if any(0 in one.values for one in series):
        positions[0] = max(positions.values(), default=0.0) + 0.5
    axes.set_xlabel("steps between saved states (logarithmic)")
    axes.set_xticks(list(positions.values()), [f"{step:,}" if step else "epoch's end" for step in positions])
    margin = gap(positions) / 2
    axes.set_xlim(min(positions.values()) - margin, max(positions.values()) + margin)
    return positions


def gap(positions: Mapping[int, float]) -> float:
    """The shortest distance between neighbours on the x axis; 1 for a single position."""
    ordered = sorted(positions.values())
    return min((right - left for left, right in itertools.pairwise(ordered)), default=1.0)


def _measurements(
    axes: Any,
    series: Sequence[_Series],
    positions: Mapping[int, float],
    centre: _Centre,
    joined: bool = True,
) -> None:
    """Dots of all measurements; beside them their centres with bars, joined by a line."""
    width = min(0.3, 0.8 / len(series)) * gap(positions)
    for index, one in enumerate(series):
        shift = (index - (len(series) - 1) / 2) * width
        ink = line_style(index) if joined else line_style(index) | {"linestyle": "none"}
        at = [positions[x] + shift for x in positions if x in one.values]
        values = [one.values[x] for x in positions if x in one.values]
        label = f"{centre.name}, {one.label}" if one.label else centre.name
        ends = [list(side) for side in zip(*(centre.spread(some) for some in values), strict=True)]
        axes.errorbar(at, [centre.of(some) for some in values], ends, label=label, mfc="white", mew=1.5, zorder=4, **ink)
        for position, some in zip(at, values, strict=True):
            axes.plot(beside(position, width, len(some)), some, ".", color=ink["color"], markersize=6, alpha=0.8, zorder=5)


def beside(position: float, width: float, count: int) -> list[float]:
    """Positions of dots: in the order of repeats, to the right of their centre, so that equal ones remain distinct."""
    return [position + width * (0.22 + 0.56 * (number + 0.5) / count) for number in range(count)]
