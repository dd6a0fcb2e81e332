"""The timeline of a launch as a picture: a bar for each span, named beside it."""

from collections.abc import Sequence
from pathlib import Path

from control.common import plotting
from control.runs.results.timeline import HERE, Span

ROW_IN, MARGIN_IN = 0.24, 1.1
"""Height of a bar with its gap, and of title and axis, inches."""


def draw_timeline(spans: Sequence[Span], path: Path, title: str) -> None:
    """Write the picture: this machine's stages above, the chief's phases below, seconds from Enter from left to right."""
    with plotting.picture(path, height=MARGIN_IN + ROW_IN * len(spans)) as figure:
        axes, end = figure.subplots(), max(span.ends for span in spans)
        for row, span in enumerate(spans):
            colour = plotting.COLOURS[0 if span.place == HERE else 1]
            axes.barh(row, span.ends - span.begins, left=span.begins, color=colour, height=0.7)
            # Beside the bar, on the side that has room.
            left = span.ends > 0.6 * end
            x, side = (span.begins, "right") if left else (span.ends, "left")
            words = f" {span.what}, {span.ends - span.begins:.1f} s "
            axes.text(x, row, words, ha=side, va="center", fontsize=8)
        places = dict.fromkeys(span.place for span in spans)
        middle = {place: [row for row, span in enumerate(spans) if span.place == place] for place in places}
        axes.set_yticks([sum(rows) / len(rows) for rows in middle.values()], list(middle))
        axes.set_ylim(len(spans) - 0.5, -0.5)
        axes.set_xlim(0, end)
        axes.set_xlabel("seconds from Enter")
        axes.grid(visible=False, axis="y")
        figure.suptitle(title)
