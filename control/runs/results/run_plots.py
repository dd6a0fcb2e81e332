"""Pictures of a run: its epochs, its phases, its errors."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from control.common.plotting import COLOURS, _tall, line_style, one_panel, picture, write_title
from control.common.text import count
from trainer.rundir.best_epoch import Monitor, monitor
from trainer.rundir.schemas import VALIDATION, metric_values

MANY_EPOCHS = 24
PHASES = {
    "input": ("input wait", "#ffffff", "...."),
    "forward_backward": ("forward and backward", "#9dbfdd", ""),
    "compression": ("compression", "#f3dfa8", "\\\\\\\\"),
    "all_reduce": ("all-reduce, with waiting", "#d98200", "////"),
    "apply": ("apply", "#4a4a4a", ""),
}
"""Phases of a step, in order: name, colour and hatching."""


def split(phases: Mapping[str, Mapping[str, float]], path: Path, subtitle: str = "") -> None:
    """Draw the phases of a step: one stacked bar per host.

    Args:
        phases: name of a bar, such as its host -> phase (a key of `PHASES`) -> milliseconds per step.
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
    """Draw the deciding metric and the loss of both splits over the epochs (rows of history.csv), with the best epoch marked."""
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
    """Draw a histogram of errors (`worker_files.evaluation`), with the limits of 50% and 95% of them, and the share beyond the axis."""
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
    """Draw the deciding metric of several runs (name -> rows of history.csv) over their epochs."""
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
    """Draw one line per label: the value of a key of the rows, times `factor`, over the epochs."""
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
