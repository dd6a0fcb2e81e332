"""Pictures of a sweep and of a run: PNG files, the same bytes for the same numbers, readable in print and in greyscale."""

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from PIL import Image

from control.sweep.scaling import Fit, Work
from control.sweep.timings import WEAK, Timing
from control.text import count
from trainer.common.files import replacing
from trainer.rundir.best_epoch import Monitor, monitor
from trainer.rundir.schemas import VALIDATION, metric_values

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

DARK_BACK, DARK_TEXT = "#14171a", "#e6e9ec"
"""Of a dark page, as in templates/report.html.j2."""

Series = dict[int, list[float]]
"""Measurements of trials that differ only in the x axis (and in the repeat): by x value, in the order of repeats."""


def time_median(timings: Sequence[Timing], path: Path) -> None:
    """Draw median end-to-end seconds against workers, with every measurement and the range of each number's."""
    _times(timings, path, "median")


def time_mean(timings: Sequence[Timing], path: Path) -> None:
    """Draw mean end-to-end seconds against workers, with every measurement and standard deviations."""
    _times(timings, path, "mean")


def _times(timings: Sequence[Timing], path: Path, centre: str) -> None:
    series = _series(timings, "seconds_end_to_end", "workers")
    with picture(path) as figure:
        axes = one_panel(figure, f"End-to-end time by workers: {centre}", _shared(timings, "workers"), "end-to-end time (s)")
        _worker_axis(axes, series)
        _measurements(axes, series, centre)
        start_at_zero(axes)
        _finish(figure, axes, timings, series, centre)


def speedup(timings: Sequence[Timing], work: Work, fit: Fit | None, path: Path) -> None:
    """Draw images/s relative to the fewest workers measured."""
    title, label = f"Speedup by workers: {work.rate} relative to {{}}", "speedup over {} (times)"
    _rates(timings, work, fit, path, title, label, lambda _workers, _fewest, rate: 1 / rate)


def efficiency(timings: Sequence[Timing], work: Work, fit: Fit | None, path: Path) -> None:
    """Draw images/s per worker relative to the fewest workers measured, in percent."""
    title, label = f"Efficiency by workers: {work.rate} per worker relative to {{}}", "efficiency over {} (%)"
    _rates(timings, work, fit, path, title, label, lambda workers, fewest, rate: 100 * fewest / (workers * rate))


def throughput(timings: Sequence[Timing], work: Work, fit: Fit | None, path: Path) -> None:
    """Draw images/s."""
    title = f"Throughput by workers: training {work.rate} of all of them"
    _rates(timings, work, fit, path, title, f"throughput ({work.rate})", lambda *_: 1.0)


def _rates(
    timings: Sequence[Timing], work: Work, fit: Fit | None, path: Path, title: str, label: str, factor: Callable[[int, int, float], float]
) -> None:
    """Draw images/s against workers, beside the ideal and the fit if there is one; all share one base: the fewest workers.

    `{}` in the title and the label is the base; `factor` takes workers, the fewest workers and their median images/s, and returns what
    images/s are multiplied by.
    """
    series = _series(timings, "images_per_s", "workers")
    fewest, most = min(row.workers for row in timings), max(row.workers for row in timings)
    base = count(fewest, "worker")
    rate = statistics.median(value for values in series.values() for value in values.get(fewest, []))
    counts = range(fewest, most + 1)
    factors = {workers: factor(workers, fewest, rate) for workers in counts}
    batch = f"{count(work.batch, work.called)} per {'worker and step' if work.scaling == WEAK else 'step of all workers'}"
    with picture(path) as figure:
        axes = one_panel(figure, title.format(base), f"{_shared(timings, 'workers')}, {batch}", label.format(base))
        _worker_axis(axes, series)
        axes.plot(counts, [factors[n] * n * rate / fewest for n in counts], label=f"ideal: in proportion to {base}", **IDEAL)
        scaled = {name: {n: [value * factors[n] for value in some] for n, some in values.items()} for name, values in series.items()}
        _measurements(axes, scaled, "median", joined=not fit)
        if fit:
            ends = [fit.interval("images_per_s", n) for n in counts]
            low, high = ([factors[n] * end[side] for n, end in zip(counts, ends, strict=True)] for side in (0, 1))
            axes.fill_between(counts, low, high, label="95% interval of the fit", **BAND)
            axes.plot(counts, [factors[n] * fit.images_per_s(n) for n in counts], label="fit", **FIT)
        start_at_zero(axes)
        _finish(figure, axes, timings, series, "median")


def checkpoints(timings: Sequence[Timing], path: Path) -> None:
    """Draw training seconds against the steps between saved states (logarithmic; 0, only at an epoch's end, is on the right).

    The seconds do not start at 0, because the differences are small; the picture says so.
    """
    series = _series(timings, "seconds_training", "checkpoint_every")
    with picture(path) as figure:
        axes = one_panel(figure, "What saved states cost: median training time", _shared(timings, "checkpoint_every"), "training time (s)")
        _measurements(axes, series, "median", _interval_axis(axes, series))
        _finish(figure, axes, timings, series, "median", " The seconds do not start at 0.")


def split(phases: Mapping[str, Mapping[str, float]], path: Path, subtitle: str = "") -> None:
    """Draw the phases of a step: one stacked bar per host.

    Args:
        phases: name of a bar, such as its host -> phase (of `PHASES`) -> milliseconds per step.
        path: of the PNG file.
        subtitle: a smaller line below the title.
    """
    hosts = list(phases)
    with picture(path, _tall(len(hosts), 8, 0.35)) as figure:
        axes = one_panel(figure, "What a training step is made of", subtitle, "")
        axes.set_xlabel("time per step (ms)")
        axes.grid(visible=False, axis="y")
        ends = [0.0] * len(hosts)
        for phase, (label, colour, hatch) in PHASES.items():
            widths = [milliseconds.get(phase, 0.0) for milliseconds in phases.values()]
            axes.barh(range(len(ends)), widths, 0.62, ends, label=label, color=colour, hatch=hatch, edgecolor="#222222", linewidth=0.7)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        for row, end in enumerate(ends):
            axes.annotate(f"{end:,.0f}", (end, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_yticks(range(len(hosts)), hosts)
        middle, half = (len(hosts) - 1) / 2, max(len(hosts), 3) / 2
        axes.set_ylim(middle + half, middle - half)
        axes.set_xlim(right=1.08 * max(ends) or 1.0)
        figure.legend(loc="outside lower center", ncols=3)


def history(rows: Sequence[dict[str, Any]], path: Path, decides: Monitor | None = None) -> None:
    """Draw the metric that decides and the loss of both splits over the epochs (rows of history.csv), with the best epoch marked."""
    decides = decides or monitor(rows[0])
    best, columns = decides.best(rows), metric_values(rows[-1])
    deciding = decides.metric.removeprefix(VALIDATION)
    known = [key for key in dict.fromkeys((deciding, "loss")) if {key, VALIDATION + key} & columns.keys()]
    keys = known or [*columns, "learning_rate"][:1]
    value = best.get(decides.metric, math.nan)
    name = f"best: epoch {best['epoch']}, {decides.label} {f'{value:.1%}' if deciding == 'accuracy' else f'{value:.4g}'}"
    with picture(path) as figure:
        panels = figure.subplots(len(keys), 1, sharex=True, squeeze=False)[:, 0]
        title = " and ".join(key.replace("_", " ") for key in keys)
        write_title(figure, f"{title[:1].upper()}{title[1:]} by epoch")
        for axes, key in zip(panels, keys, strict=True):
            factor, splits = (100.0 if key == "accuracy" else 1.0), {"training": key, "validation": VALIDATION + key}
            _curves(axes, {split: (rows, column) for split, column in splits.items() if column in columns or column == key}, factor)
            axes.axvline(best["epoch"], color="#888888", linewidth=1.0, zorder=1)
            marked = best.get(VALIDATION + key, best.get(key, math.nan)) * factor
            axes.plot([best["epoch"]], [marked], "*", color="#a33a00", markersize=11, zorder=5, label=name)
            axes.margins(y=0.12)
            axes.set_ylabel("accuracy (%)" if key == "accuracy" else key.replace("_", " "))
        _epoch_axis(panels[-1], [row["epoch"] for row in rows])
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def errors(histogram: Mapping[str, Any], path: Path, title: str) -> None:
    """Draw a histogram of errors (`worker_files.evaluation`), with the limits of half and of 95% of them, and what lies beyond the axis."""
    counts, low, high = histogram["counts"], histogram["low"], histogram["high"]
    width, left = (high - low) / len(counts), histogram["below"] + histogram["above"]
    beyond = f", {left:,} of them beyond the axis; the largest is {histogram['largest']:,.3g}" if left else ""
    with picture(path) as figure:
        axes = one_panel(figure, title, f"{count(histogram['values'], 'value')}{beyond}", "values")
        axes.bar([low + (number + 0.5) * width for number in range(len(counts))], counts, width, color=PHASES["forward_backward"][1])
        axes.axvline(0, color="#444444", linewidth=1)
        for name, share, style in (("median_absolute", "half", "--"), ("absolute_95", "95%", ":")):
            line = {"color": COLOURS[1], "linestyle": style, "linewidth": 1.5}
            axes.axvline(-histogram[name], **line)
            axes.axvline(histogram[name], **line, label=f"{share} within ±{histogram[name]:,.3g}")
        axes.set_xlabel("prediction minus target")
        axes.set_xlim(low, high)
        figure.legend(loc="outside lower center", ncols=2)


def compare(runs: Mapping[str, Sequence[dict[str, Any]]], path: Path, decides: Monitor) -> None:
    """Draw the metric that decides on the best epoch of several runs (name -> rows of history.csv) over their epochs."""
    lines, share = {}, decides.is_share
    for name, rows in runs.items():
        best = decides.best(rows)
        value = f"{best[decides.metric]:.1%}" if share else f"{best[decides.metric]:.4f}"
        lines[f"{name}: best {value}, epoch {best['epoch']}"] = (rows, decides.metric)
    with picture(path, _tall(len(runs), 4, 0.18)) as figure:
        axes = one_panel(figure, f"{decides.label.capitalize()} by epoch", "", f"{decides.label}{' (%)' if share else ''}")
        _curves(axes, lines, 100.0 if share else 1.0)
        _epoch_axis(axes, [row["epoch"] for rows in runs.values() for row in rows])
        figure.legend(loc="outside lower left")


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


def darken(picture: Path, path: Path) -> None:
    """Write a picture's variant for dark pages: same hues, with light and dark exchanged; nothing if it is no picture."""
    try:
        with Image.open(picture) as opened:
            colours = np.asarray(opened.convert("RGB"), np.float64) / 255
    except (OSError, Image.DecompressionBombError):
        return
    # In the HSL model, this replaces a lightness of l by 1 - l.
    exchanged = 1 - colours.max(axis=-1, keepdims=True) - colours.min(axis=-1, keepdims=True) + colours
    low, high = (np.array(mpl.colors.to_rgb(colour)) for colour in (DARK_BACK, DARK_TEXT))
    with replacing(path) as part:
        Image.fromarray(np.round(255 * (low + exchanged * (high - low))).astype(np.uint8)).save(part, "PNG", optimize=True)


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


def footnote(figure: Any, notes: str) -> None:
    """Write notes below the axes."""
    figure.supxlabel(notes, x=0.01, ha="left", fontsize=9, color="#333333")


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


def _series(timings: Sequence[Timing], quantity: str, over: str) -> dict[str, Series]:
    """Measured rows as one series per incomparable group, by their differences; the only one has an empty name."""
    measured = sorted((row for row in timings if row.measured), key=lambda row: row.trial)
    differing = [name for name in _SETTINGS if name != over and not _same(measured, name)]
    series: dict[str, Series] = {}
    for row in measured:
        values = series.setdefault(_settings(row, differing), {})
        values.setdefault(getattr(row, over), []).append(getattr(row, quantity))
    return series


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


def _finish(figure: Any, axes: Any, timings: Sequence[Timing], series: Mapping[str, Series], centre: str, note: str = "") -> None:
    """The legend, and below the axes the meaning of dots and bars and the number of missing trials."""
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend()
    shown = "from the least to the largest" if centre == "median" else "± standard deviation"
    repeated = any(len(some) > 1 for values in series.values() for some in values.values())
    bars = f"Bars: {shown}." if repeated else "No bars: one repeat each."
    failed = sum(not row.measured for row in timings)
    missing = f" {count(failed, 'failed trial')} left out." if failed else ""
    footnote(figure, f"Dots: single measurements. {bars}{missing}{note}")


def _worker_axis(axes: Any, series: Mapping[str, Series]) -> None:
    """Whole numbers of workers on the x axis."""
    counts = sorted({workers for values in series.values() for workers in values})
    axes.set_xlabel("workers")
    if counts[-1] - counts[0] < MANY_TICKS:
        axes.set_xticks(range(counts[0], counts[-1] + 1))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    margin = max(0.5, 0.03 * (counts[-1] - counts[0]))
    axes.set_xlim(counts[0] - margin, counts[-1] + margin)


def _interval_axis(axes: Any, series: Mapping[str, Series]) -> dict[int, float]:
    """Steps between saved states on a logarithmic scale; returns the position of each."""
    steps = sorted({step for values in series.values() for step in values if step})
    positions = {step: math.log10(step) for step in steps}
    if any(0 in values for values in series.values()):
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
    axes: Any, series: Mapping[str, Series], centre: str, positions: Mapping[int, float] | None = None, joined: bool = True
) -> None:
    """Dots of all measurements; beside them their centres with bars, joined by a line.

    The bars of a median span all values; those of a mean are one standard deviation. Without `positions`, x values are positions.
    """
    at = positions or {x: float(x) for x in sorted({x for values in series.values() for x in values})}
    width = min(0.3, 0.8 / len(series)) * gap(at)
    for index, (name, values) in enumerate(series.items()):
        shift = (index - (len(series) - 1) / 2) * width
        ink = line_style(index) if joined else line_style(index) | {"linestyle": "none"}
        xs = [at[x] + shift for x in at if x in values]
        groups = [values[x] for x in at if x in values]
        middles, ends = zip(*(_centre(some, centre) for some in groups), strict=True)
        label = f"{centre}, {name}" if name else centre
        axes.errorbar(xs, middles, list(zip(*ends, strict=True)), label=label, mfc="white", mew=1.5, zorder=4, **ink)
        for position, some in zip(xs, groups, strict=True):
            axes.plot(beside(position, width, len(some)), some, ".", color=ink["color"], markersize=6, alpha=0.8, zorder=5)


def _centre(values: Sequence[float], centre: str) -> tuple[float, tuple[float, float]]:
    """The median or mean, and the lengths of the bar below and above it; a single value has no bar."""
    middle = statistics.median(values) if centre == "median" else statistics.fmean(values)
    if len(values) == 1:
        return middle, (math.nan, math.nan)
    if centre == "median":
        return middle, (middle - min(values), max(values) - middle)
    return middle, (statistics.stdev(values), statistics.stdev(values))


def beside(position: float, width: float, count: int) -> list[float]:
    """Positions of dots: in the order of repeats, to the right of their centre, so that equal ones remain distinct."""
    return [position + width * (0.22 + 0.56 * (number + 0.5) / count) for number in range(count)]
