"""The picture of `benchmarks/peers.yml`: images/s of every system at the most workers, and how each scales with workers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from benchmarks.peer_results.peer_trials import BOUND, IDEAL, NO_LIMIT, OURS, SYSTEMS
from benchmarks.peer_results.peers_results import Point, Results, heading, shown_link
from control.common.plotting import picture

PANEL_IN, BARS_IN, CURVES_IN = 5.0, 0.34, 3.9
COLOURS = {OURS: "#0b4f8a", IDEAL: "#8a8a8a", BOUND: "#b5b5b5"}
PEERS = {
    "own": {"color": "#d98200", "marker": "s"},
    "torch": {"color": "#3f9c6b", "marker": "^"},
    "horovod": {"color": "#7a1f5c", "marker": "D"},
}
DASHES: dict[str, Any] = {"": "-", "loop": "-.", "fp16": "--", "loop-fp16": (0, (1, 1)), "powersgd": ":"}
OWN_DASHES: dict[str, Any] = {"lockstep": "-", "train": "-.", "lockstep-packed": (0, (1, 1))}
LIMIT: dict[str, Any] = {"color": "#444444", "linestyle": ":", "linewidth": 1.5}
WIRE: dict[str, Any] = {"color": "#a33a00", "linewidth": 2.2}
BACKGROUND = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
PAST = 1.06
"""A limit beyond this many times the longest bar is not drawn."""
NEAR = 0.15
"""If a limit is within this many lengths of the longest bar from its bar's end, the number goes behind the limit."""


def draw(results: Results, path: Path) -> None:
    """Draw all links side by side: bars above, curves below."""
    links = [link for link in results.links if results.at(link, results.most)]
    curves = len(results.workers) > 1
    most = max(len(results.at(link, results.most)) for link in links)
    heights = [most * BARS_IN + 1.3, *([CURVES_IN] if curves else [])]
    with picture(path, sum(heights), PANEL_IN * len(links)) as figure:
        grid = figure.subplots(len(heights), len(links), squeeze=False, height_ratios=heights)
        for column, link in enumerate(links):
            _bars(grid[0][column], results, link)
            if curves:
                _curves(grid[1][column], results, link)
        # Bars of one length, and curves of one height, for all links.
        for axes in grid[0]:
            axes.set_xlim(0, max(other.get_xlim()[1] for other in grid[0]))
        for axes in grid[1] if curves else ():
            axes.set_ylim(0, max(other.get_ylim()[1] for other in grid[1]))
        labelled = [axes.get_legend_handles_labels() for axes in grid[1]] if curves else []
        handles = {label: handle for both in labelled for handle, label in zip(*both, strict=True)} | _limits(results, links)
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=min(len(handles), 2 * len(links) + 1))


def _bars(axes: Axes, results: Results, link: str) -> None:
    points, ideal = results.at(link, results.most), results.best(link, results.most, IDEAL)
    longest = max(point.images_per_s for point in points)
    for position, point in enumerate(points):
        _bar(axes, position, point, longest)
    if ideal:
        axes.axvline(ideal.images_per_s, **LIMIT)
    axes.set_yticks(range(len(points)), [point.name for point in points])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, longest * 1.22)
    axes.set_xlabel("images/s")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_title(heading(link, results.most), loc="left")


def _bar(axes: Axes, position: int, point: Point, longest: float) -> None:
    least, speed, most = point.of("images_per_s")
    errors = [[speed - least], [most - speed]]
    axes.barh(
        position, speed, 0.68, color=_colour(point.system), xerr=errors, error_kw={"ecolor": "#222222", "elinewidth": 1, "capsize": 3}
    )
    wire, end = _wire_limit(point), max(most, speed)
    if wire is not None and wire <= longest * PAST:
        axes.plot([wire, wire], [position - 0.42, position + 0.42], **WIRE)
        end = wire if end < wire < end + longest * NEAR else end
    axes.annotate(f"{speed:,.0f}", (end, position), (6, 0), textcoords="offset points", va="center", fontsize=9, bbox=BACKGROUND)


def _wire_limit(point: Point) -> float | None:
    """Images/s at which the wire is saturated."""
    return point.images_per_s * point.of("seconds_step").median / point.wire if point.wire else None


def _curves(axes: Axes, results: Results, link: str) -> None:
    for system in results.systems:
        points = _curve(results, link, system)
        if len(points) > 1:
            numbers, speeds, low, high = zip(*points, strict=True)
            errors = [[a - b for a, b in zip(speeds, low, strict=True)], [a - b for a, b in zip(high, speeds, strict=True)]]
            axes.errorbar(numbers, speeds, errors, label=system, **_line(system))
    axes.set_xticks(results.workers)
    axes.set_xlim(min(results.workers) - 0.2, max(results.workers) + 0.2)
    axes.set_xlabel("workers")
    axes.set_ylabel("images/s")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_title(shown_link(link), loc="left")


def _curve(results: Results, link: str, system: str) -> list[tuple[int, float, float, float]]:
    """Workers, median, least and most images/s; one worker's figure holds for every link, and its ideal is ours."""
    points = []
    for workers in results.workers:
        point = _alone(results, system) if workers == 1 else results.points.get((link, workers, system))
        if point:
            least, median, most = point.of("images_per_s")
            points.append((workers, median, least, most))
    return points


def _alone(results: Results, system: str) -> Point | None:
    """The point for one worker, which reduces nothing: our variants, the ideal and compressed peers equal their plain form."""
    same = [name for name, other in SYSTEMS.items() if other.program == SYSTEMS[system].program]
    return next((point for name in (system, *same) if (point := results.alone(name))), None)


def _line(system: str) -> Mapping[str, Any]:
    compared = SYSTEMS[system]
    if compared.kind in (IDEAL, BOUND):
        return {"color": COLOURS[compared.kind], "linestyle": ":", "linewidth": 2, "marker": ""}
    if compared.kind == OURS:
        return {"color": COLOURS[OURS], "linestyle": OWN_DASHES.get(system, "--"), "linewidth": 2.4, "marker": "o"}
    return {**PEERS[compared.environment], "linestyle": DASHES[compared.variant], "linewidth": 1.4}


def _colour(system: str) -> str:
    compared = SYSTEMS[system]
    return COLOURS.get(compared.kind) or PEERS[compared.environment]["color"]


def _limits(results: Results, links: list[str]) -> dict[str, Any]:
    """Legend entries for the limit lines in the bar chart."""
    handles = {}
    if any(results.best(link, results.most, IDEAL) for link in links):
        handles["limit of computing"] = Line2D([], [], **LIMIT)
    if any(link != NO_LIMIT for link in links):
        handles["limit of the wire"] = Line2D([], [], **WIRE)
    return handles
