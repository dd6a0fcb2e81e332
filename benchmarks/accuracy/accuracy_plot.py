"""The picture of `benchmarks/accuracy.yml`: validation accuracy over the epochs, and test accuracies of all seeds."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from benchmarks.accuracy.accuracy_results import REFERENCE, Row, Training
from control.common.plotting import picture

COLOURS = ("#444444", "#0b4f8a", "#d98200", "#3f9c6b", "#7a1f5c", "#a33a00", "#8a8a8a", "#2aa5b8")


def draw(rows: Sequence[Row], curves: dict[Training, list[float]], path: Path) -> None:
    """Draw one row per configuration: curves on the left, final accuracies on the right."""
    configs, methods = list(dict.fromkeys(row.config for row in rows)), list(dict.fromkeys(row.method for row in rows))
    colours = dict(zip(sorted(methods, key=lambda name: name != REFERENCE), COLOURS, strict=False))
    with picture(path, 3.6 * len(configs), 9.5) as figure:
        grid = figure.subplots(len(configs), 2, squeeze=False, width_ratios=[3, 2])
        for (left, right), config in zip(grid, configs, strict=True):
            _curves(left, config, curves, colours)
            _end(right, config, rows, colours)


def _curves(axes: Axes, config: str, curves: dict[Training, list[float]], colours: dict[str, str]) -> None:
    for method, colour in colours.items():
        mine = [values for training, values in curves.items() if (training.config, training.method) == (config, method)]
        for values in mine:
            axes.plot(range(1, len(values) + 1), values, color=colour, linewidth=0.8, alpha=0.45)
        shortest = min((len(values) for values in mine), default=0)
        if shortest:
            middle = np.median([values[:shortest] for values in mine], axis=0)
            axes.plot(range(1, shortest + 1), middle, color=colour, linewidth=2.2, label=method)
    axes.set(title=f"{config}: validation accuracy", xlabel="epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(loc="lower right")


def _end(axes: Axes, config: str, rows: Sequence[Row], colours: dict[str, str]) -> None:
    accuracies = {method: [row.test_accuracy for row in rows if (row.config, row.method) == (config, method)] for method in colours}
    accuracies = {method: values for method, values in accuracies.items() if values}
    for position, (method, values) in enumerate(accuracies.items()):
        axes.plot([position] * len(values), values, "o", color=colours[method], alpha=0.6)
        middle = statistics.median(values)
        axes.plot([position - 0.25, position + 0.25], [middle, middle], color=colours[method], linewidth=2.5)
        axes.annotate(f"{middle:.2%}", (position + 0.28, middle), va="center", fontsize=9)
    axes.set(title="test accuracy, each seed and the median", xlim=(-0.6, len(accuracies) - 0.2))
    axes.set_xticks(range(len(accuracies)), list(accuracies))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=1))
