"""The timeline of a launch as text: a bar for each span, on an axis on which a long training is shortened."""

from collections.abc import Callable, Sequence

from control.common import project
from control.runs.results import timeline
from control.runs.results.run_folder import RunFolder
from control.runs.results.timeline import REST, Span

PICTURE = "timeline.png"
WIDTH = 44
"""Width of the axis, characters."""
TRAINING = 0.3
"""Largest part of the axis for what follows the first call of steps."""


def show_timeline(run: RunFolder) -> str:
    """The timeline of a run's last launch as text; its picture is written into the run's folder, which the last line names."""
    # matplotlib takes half a second to import, and few ask for this.
    from control.runs.show.timeline_picture import draw_timeline

    found, path = timeline.spans(run), run.path / PICTURE
    if not found:
        return f"The timeline of {run.name} is not known: it has not ended, trained no step, or no command watched its end."
    draw_timeline(found, path, f"{run.name}: from Enter to the result")
    return f"{timeline_text(found)}\n  picture: {project.relative(path)}"


def timeline_text(spans: Sequence[Span]) -> str:
    """A table of the spans: seconds from Enter, duration, bar."""
    place, lines = _axis(spans), []
    names = max(len(span.what) for span in spans)
    for number, span in enumerate(spans):
        if number == 0 or span.place != spans[number - 1].place:
            lines.append(f"  {span.place}")
        begins, ends = round(place(span.begins)), round(place(span.ends))
        bar = " " * begins + ("█" * (ends - begins) or "▏")
        lines.append(f"  {span.begins:8.1f} {span.ends - span.begins:8.1f}  {span.what:<{names}}  {bar}".rstrip())
    return "\n".join(["  from Enter  takes (s)", *lines])


def _axis(spans: Sequence[Span]) -> Callable[[float], float]:
    """Where a second lies on the axis, in characters."""
    end = max(span.ends for span in spans)
    training = max((span for span in spans if span.what == REST), key=lambda span: span.ends - span.begins)
    length, others = training.ends - training.begins, end - (training.ends - training.begins)
    shown = min(length, others * TRAINING / (1 - TRAINING))
    scale = WIDTH / (others + shown)

    def place(second: float) -> float:
        within = min(max(second - training.begins, 0.0), length)
        return scale * (second - within + (within * shown / length if length else 0.0))

    return place
