"""Analysis of passes over a folder of images with different numbers of loaders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.ticker import StrMethodFormatter

from benchmarks.analysis.common import CORES, Passes, bars_note, deviation, differ, error_bars, figures
from control import plots
from control.text import Number, count, table

GAIN = 0.03
"""More loaders are worthwhile if they gain more than this fraction; less is within the spread of passes."""
UNSURE = 0.10
"""A gain above this fraction that repeats can't confirm leaves the question open; it does not rule out more loaders."""


@dataclass(frozen=True)
class Row(Passes):
    """All passes with one number of loaders."""

    loaders: int


def rows(passes: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The passes grouped by number of loaders, fewest loaders first."""
    return Row.grouped(passes, "loaders")


def fastest(found_rows: Sequence[Row]) -> Row:
    """The row with the highest median images/s."""
    return max(found_rows, key=lambda row: row.images_per_s.median)


def enough(found_rows: Sequence[Row]) -> Row:
    """The fewest loaders within `GAIN` of the fastest, or within `UNSURE` if passes differ by that much."""
    best = fastest(found_rows)
    return next(row for row in found_rows if _gain(row, best) < GAIN or (_gain(row, best) < UNSURE and _alike(row, best)))


def _gain(row: Row, best: Row) -> float:
    return best.images_per_s.median / row.images_per_s.median - 1


def _alike(row: Row, best: Row) -> bool:
    return len(row.seconds.values) > 1 and not differ(row.seconds, best.seconds)


def answer(found_rows: Sequence[Row], cores: int) -> str:
    """How many loaders are enough, and how many training uses by default."""
    first, best = found_rows[0], enough(found_rows)
    rate = f"{best.images_per_s.median:,.0f} images/s"
    speed = rate if best is first else f"{rate}, {best.images_per_s.median / first.images_per_s.median:.2f} times those of {first.loaders}"
    few = count(best.loaders, "loader")
    if len(found_rows) == 1:
        sentence = f"{few}: {rate}."
    elif best is found_rows[-1]:
        sentence = f"The most loaders measured are the fastest: {few}, {speed}; more may be faster still."
    else:
        sentence = f"{few} {'is' if best.loaders == 1 else 'are'} enough: {speed}; {_more(best, fastest(found_rows))}."
    return f"{sentence}{_open(found_rows)} Training takes {cores} here (the cores) unless data.loaders says otherwise."


def _open(found_rows: Sequence[Row]) -> str:
    """A warning if fewer loaders are much slower but passes differ by as much."""
    best = fastest(found_rows)
    fewer = [row for row in found_rows if row.loaders < enough(found_rows).loaders]
    if not any(_alike(row, best) for row in fewer):
        return ""
    passes = len(best.seconds.values)
    return f" Passes differ too much to be sure of that: measure more of them, as in -e passes={3 * passes}."


def _more(best: Row, most: Row) -> str:
    gain = _gain(best, most)
    return f"more bring less than {GAIN:.0%}" if gain < GAIN else f"what more bring ({gain:.0%}) is within what passes differ by"


def cached(decoded_mb: float, limit_mb: int) -> str:
    """Whether training would decode these images on the fly at all."""
    takes = f"Decoded, all images take {decoded_mb:,.0f} MB"
    if decoded_mb > limit_mb:
        return f"{takes}, above data.cache_limit_mb={limit_mb}: training decodes them in every epoch, as timed here."
    return (
        f"{takes}, within data.cache_limit_mb={limit_mb}: training would decode them once and read a cache from then on; "
        "what is timed here is what a folder above the limit costs in every epoch."
    )


def shown(found_rows: Sequence[Row]) -> str:
    """The table for the terminal."""
    first = found_rows[0].images_per_s.median
    header = [
        "loaders",
        "seconds per pass (mean)",
        "± deviation",
        "median",
        "images/s (median)",
        f"times {found_rows[0].loaders}",
        *CORES,
    ]
    cells = [
        [
            row.loaders,
            Number(row.seconds.mean, 2),
            deviation(row.seconds, 2),
            Number(row.seconds.median, 2),
            Number(row.images_per_s.median, 0),
            Number(row.images_per_s.median / first, 2),
            *row.core_cells(),
        ]
        for row in found_rows
    ]
    return table(header, cells)


def as_dicts(found_rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows for summary.json."""
    return [
        {
            "loaders": row.loaders,
            "seconds": figures(row.seconds),
            "images_per_s": figures(row.images_per_s, 1),
            **row.cores(),
        }
        for row in found_rows
    ]


def draw(found_rows: Sequence[Row], images: int, where: str, path: Path) -> None:
    """Draw mean seconds per pass and mean images/s against loaders, with error bars of one standard deviation."""
    with plots.picture(path, 5.4) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        plots.write_title(figure, f"Passes over {images:,} JPEG images by loader workers")
        upper.set_title(where, loc="left", color="#333333")
        _panel(upper, found_rows, "time per pass (s)", lambda row: row.seconds, 0)
        _panel(lower, found_rows, "images/s", lambda row: row.images_per_s, 1)
        positions = [row.loaders for row in found_rows]
        lower.set_xlabel("loader workers (threads)")
        if len(positions) < plots.MANY_TICKS:
            lower.set_xticks(positions)
        lower.set_xlim(positions[0] - 0.5, positions[-1] + 0.5)
        note = bars_note(len(found_rows[0].seconds.values), "; dots: single passes")
        plots.footnote(figure, f"{note} A warm-up pass is left out.")


def _panel(axes: Any, found_rows: Sequence[Row], label: str, of: Any, ink: int) -> None:
    style = plots.line_style(ink)
    positions, spreads = [row.loaders for row in found_rows], [of(row) for row in found_rows]
    error_bars(axes, positions, spreads, zorder=4, **style)
    for position, one in zip(positions, spreads, strict=True):
        axes.plot(plots.beside(position, 0.3, len(one.values)), one.values, ".", color=style["color"], markersize=6, alpha=0.8, zorder=5)
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    plots.start_at_zero(axes)
