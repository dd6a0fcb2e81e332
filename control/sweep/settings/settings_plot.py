"""Plot in parallel coordinates: one line per trial over an axis for each key and one for the deciding metric."""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

from control.common.plotting import HEIGHT_IN, WIDTH_IN, footnote, picture, write_title
from control.common.text import count
from control.sweep.settings import trial_settings
from control.sweep.settings.trial_settings import SUCCEEDED, Result, Settings
from trainer.rundir.best_epoch import Monitor

LOGARITHMIC = 30.0
"""Smallest ratio of the largest to the smallest value with which a scale is logarithmic."""
NAMED = 8
"""Most values of which each has its own mark; with more, a scale has `MARKS`."""
MARKS = 5
LETTERS = 14
"""Letters of a note per inch."""
APART = 0.05
"""Least distance between readable labels, as a height."""
AXIS_IN = 1.5
"""Width of an axis with its labels, inches."""
BEST = {"color": "#a33a00", "linewidth": 2.4, "zorder": 5}
SHADES = mpl.colormaps["Blues"]
LIGHTEST = 0.3


@dataclass(frozen=True)
class Axis:
    """A vertical scale from 0 to 1."""

    title: str
    place: Callable[[Any], float]
    """Value -> height."""
    marks: dict[str, float]
    """Labels and their heights."""


def parallel(rows: Sequence[Result], keys: Sequence[str], metric: Monitor, path: Path) -> None:
    """Draw the trials that succeeded.

    Args:
        rows: rows of trials.csv, the best first.
        keys: the varied keys, in the order of the axes.
        metric: the deciding metric; its better end is at the top.
        path: path of the PNG file.
    """
    shown = [row for row in rows if row.state == SUCCEEDED and row.metric == metric.metric and row.value is not None]
    names = trial_settings.short_keys(keys)
    axes_of = {key: _axis(names[key], [row.values[key] for row in shown]) for key in keys}
    judged = _numbers(metric.label, [row.value or 0.0 for row in shown], upwards=metric.highest)
    scales = [*axes_of.values(), judged]
    width = max(WIDTH_IN, AXIS_IN * len(scales))
    with picture(path, HEIGHT_IN, width) as figure:
        axes = figure.subplots()
        write_title(figure, _plain(f"{metric.label[:1].upper()}{metric.label[1:]} by settings"))
        axes.set_axis_off()
        axes.set_xlim(-0.45, len(scales) - 0.55)
        axes.set_ylim(-0.05, 1.16)
        for x, scale in enumerate(scales):
            _draw_axis(axes, x, scale, last=scale is judged)
        for number in reversed(range(len(shown))):
            row = shown[number]
            heights = [*(axes_of[key].place(row.values[key]) for key in keys), judged.place(row.value)]
            shade = 1.0 - (1.0 - LIGHTEST) * number / max(1, len(shown) - 1)
            ink = BEST if number == 0 else {"color": SHADES(shade), "linewidth": 1.2, "zorder": 3}
            axes.plot(range(len(scales)), heights, marker="o", markersize=3.5, **ink)
        left_out = f" {count(len(rows) - len(shown), 'trial')} without a result left out." if len(shown) < len(rows) else ""
        best = f"Each line is a trial, the darker the better. Thick: the best, {shown[0].values.label}.{left_out}"
        footnote(figure, _plain(textwrap.fill(best, int(LETTERS * width))))


def _axis(title: str, values: Sequence[Any]) -> Axis:
    """The scale of a key: numeric if all values are numbers, else one height for each value."""
    distinct = {Settings({"": value}).json: value for value in values}
    if len(distinct) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct.values()):
        return _numbers(title, list(distinct.values()))
    heights = {one: (index + 0.5) / len(distinct) for index, one in enumerate(sorted(distinct))}
    marks = {trial_settings.value_text(distinct[one]): height for one, height in heights.items()}
    return Axis(title, lambda value: heights[Settings({"": value}).json], marks)


def _numbers(title: str, values: Sequence[float], upwards: bool = True) -> Axis:
    least, most = min(values), max(values)
    logarithmic = least > 0 and most / least >= LOGARITHMIC
    scale, back = (math.log, math.exp) if logarithmic else (float, float)

    def place(value: float) -> float:
        share = (scale(value) - scale(least)) / (scale(most) - scale(least)) if most > least else 0.5
        return share if upwards else 1.0 - share

    shown = sorted(set(values))
    if len(shown) > NAMED:
        shown = [back(scale(least) + (scale(most) - scale(least)) * mark / (MARKS - 1)) for mark in range(MARKS)]
    return Axis(f"{title} (log)" if logarithmic else title, place, {f"{value:.4g}": place(value) for value in shown})


def _plain(words: str) -> str:
    """The text with escaped dollar signs, which would begin a formula."""
    return words.replace("$", r"\$")


def _draw_axis(axes: Any, x: int, scale: Axis, last: bool) -> None:
    """Draw a scale; beside the last one, lines end to the left."""
    where = (x + 0.05, "left") if last else (x - 0.05, "right")
    axes.plot([x, x], [0, 1], color="#888888", linewidth=1.0, zorder=2)
    axes.text(x, 1.06, _plain(scale.title), ha="center", va="bottom", fontsize=9)
    below = -1.0
    for label, height in sorted(scale.marks.items(), key=lambda mark: mark[1]):
        if height - below < APART:
            continue
        below = height
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
        axes.text(where[0], height, _plain(label[:18]), ha=where[1], va="center", fontsize=8, zorder=6, bbox=box)
