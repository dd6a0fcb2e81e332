"""Pictures of a sweep and of a run: PNG files, the same bytes for the same numbers, readable in print and in greyscale."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from control.campaign.timings import WEAK, Timing
from control.common.plotting import BAND, FIT, IDEAL, footnote, line_style, one_panel, picture, start_at_zero
from control.common.text import count
from control.sweep.scaling.fitting import Fit, Work

MANY_TICKS = 16


Series = dict[int, list[float]]
"""Measurements of trials that differ only in the x axis (and in the repeat): by x value, in the order of repeats."""


def times(timings: Sequence[Timing], centre: str, path: Path) -> None:
    """Draw end-to-end seconds against workers, with every measurement.

    `centre` is `median`, with the range of each number of workers, or `mean`, with standard deviations.
    """
    series = _series(timings, "seconds_end_to_end", "workers")
    with picture(path) as figure:
        axes = one_panel(figure, f"End-to-end time by workers: {centre}", _shared(timings, "workers"), "end-to-end time (s)")
        _worker_axis(axes, series)
        _measurements(axes, series, centre)
        start_at_zero(axes)
        _finish(figure, axes, timings, series, centre)


@dataclass(frozen=True)
class Rate:
    """A quantity in proportion to images/s."""

    title: str
    """`{rate}` is the unit of speed, `{base}` the fewest workers measured."""
    label: str
    factor: Callable[[int, int, float], float]
    """(workers, the fewest workers, their median images/s) -> factor for images/s."""


RATES = {
    "speedup": Rate(
        "Speedup by workers: {rate} relative to {base}", "speedup over {base} (times)", lambda _workers, _fewest, rate: 1 / rate
    ),
    "efficiency": Rate(
        "Efficiency by workers: {rate} per worker relative to {base}",
        "efficiency over {base} (%)",
        lambda workers, fewest, rate: 100 * fewest / (workers * rate),
    ),
    "images_per_s": Rate("Throughput by workers: training {rate} of all of them", "throughput ({rate})", lambda *_: 1.0),
}
"""Plotted quantities by the stem of the picture's file name."""


def rates(timings: Sequence[Timing], work: Work, fit: Fit | None, quantity: Rate, path: Path) -> None:
    """Draw a quantity against workers, with the ideal and the fit if there is one; the base of all is the fewest workers."""
    series = _series(timings, "images_per_s", "workers")
    fewest, most = min(row.workers for row in timings), max(row.workers for row in timings)
    base = count(fewest, "worker")
    rate = statistics.median(value for values in series.values() for value in values.get(fewest, []))
    counts = range(fewest, most + 1)
    factors = {workers: quantity.factor(workers, fewest, rate) for workers in counts}
    batch = f"{count(work.batch, work.called)} per {'worker and step' if work.scaling == WEAK else 'step of all workers'}"
    title, label = (words.format(rate=work.rate, base=base) for words in (quantity.title, quantity.label))
    with picture(path) as figure:
        axes = one_panel(figure, title, f"{_shared(timings, 'workers')}, {batch}", label)
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


def _series(timings: Sequence[Timing], quantity: str, over: str) -> dict[str, Series]:
    """Measured rows as one series per group of comparable trials, named by the groups' differences; a single series has an empty name."""
    measured = sorted((row for row in timings if row.measured), key=lambda row: row.trial)
    differing = [name for name in _SETTINGS if name != over and not _same(measured, name)]
    series: dict[str, Series] = {}
    for row in measured:
        values = series.setdefault(_settings(row, differing), {})
        values.setdefault(getattr(row, over), []).append(getattr(row, quantity))
    return series


def _shared(timings: Sequence[Timing], over: str) -> str:
    """Settings common to all measured trials, in words."""
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
    """Add the legend and, below the axes, the meaning of dots and bars and the number of missing trials."""
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
    margin = _gap(positions) / 2
    axes.set_xlim(min(positions.values()) - margin, max(positions.values()) + margin)
    return positions


def _measurements(
    axes: Any, series: Mapping[str, Series], centre: str, positions: Mapping[int, float] | None = None, joined: bool = True
) -> None:
    """Draw dots of all measurements and, beside them, their centres with bars, joined by a line.

    The bars of a median span all values; those of a mean are one standard deviation. Without `positions`, x values are positions.
    """
    at = positions or {x: float(x) for x in sorted({x for values in series.values() for x in values})}
    width = min(0.3, 0.8 / len(series)) * _gap(at)
    for index, (name, values) in enumerate(series.items()):
        shift = (index - (len(series) - 1) / 2) * width
        ink = line_style(index) if joined else line_style(index) | {"linestyle": "none"}
        xs = [at[x] + shift for x in at if x in values]
        groups = [values[x] for x in at if x in values]
        middles, ends = zip(*(_centre(some, centre) for some in groups), strict=True)
        label = f"{centre}, {name}" if name else centre
        axes.errorbar(xs, middles, list(zip(*ends, strict=True)), label=label, mfc="white", mew=1.5, zorder=4, **ink)
        for position, some in zip(xs, groups, strict=True):
            axes.plot(_beside(position, width, len(some)), some, ".", color=ink["color"], markersize=6, alpha=0.8, zorder=5)


def _centre(values: Sequence[float], centre: str) -> tuple[float, tuple[float, float]]:
    """The median or mean, and the lengths of the bar below and above it; a single value has no bar."""
    middle = statistics.median(values) if centre == "median" else statistics.fmean(values)
    if len(values) == 1:
        return middle, (math.nan, math.nan)
    if centre == "median":
        return middle, (middle - min(values), max(values) - middle)
    return middle, (statistics.stdev(values), statistics.stdev(values))


def _gap(positions: Mapping[int, float]) -> float:
    """The shortest distance between neighbours on the x axis; 1 for a single position."""
    ordered = sorted(positions.values())
    return min((right - left for left, right in pairwise(ordered)), default=1.0)


def _beside(position: float, width: float, count: int) -> list[float]:
    """Positions of dots, in the order of repeats, to the right of their centre, so that equal measurements remain distinct."""
    return [position + width * (0.22 + 0.56 * (number + 0.5) / count) for number in range(count)]
