"""The look of all pictures: PNG files, the same bytes for the same numbers, readable in print and in greyscale."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from PIL import Image

from trainer.common.files import replacing

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
DARK_BACK, DARK_TEXT = "#14171a", "#e6e9ec"
"""Colours of a dark page, as in templates/report.html.j2."""


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
