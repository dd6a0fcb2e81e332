"""Analysis of repeated passes on one host: statistics, the table, the picture, the host."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.ticker import NullLocator, StrMethodFormatter

from control.common import plotting
from control.common.text import Number, count, table
from control.sweep.scaling import scaling_plots

FACTS = ("model", "cores", "cpu_quota", "cpus", "os", "machine", "memory", "load", "governors", "temperature", "throttled")
"""Facts that matter for judging a measurement, from a host's probe."""
CERTAIN = 2.0
"""Two measurements differ if their means differ by more than this many times the spread of the repeats."""
OTHERS = 0.2
"""Other processes spoil a measurement if they take more than this fraction of the cores."""
SHORTEST_S = 1.0
"""The kernel counts idle time in hundredths of a second, which is too coarse for anything shorter than this."""


@dataclass(frozen=True)
class Spread:
    """Repeats of one measurement."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Arithmetic mean."""
        return statistics.fmean(self.values)

    @property
    def median(self) -> float:
        """Median."""
        return statistics.median(self.values)

    @property
    def deviation(self) -> float:
        """Standard deviation of the sample; NaN for a single repeat."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    def differs(self, other: "Spread") -> bool:
        """True if two measurements differ by more than their repeats do; false for single repeats."""
        return abs(self.mean - other.mean) > CERTAIN * math.hypot(self.deviation, other.deviation)

    def figures(self) -> dict[str, float | None]:
        """For summary.json; the deviation of a single repeat is null."""
        deviation = None if math.isnan(self.deviation) else round(self.deviation, 6)
        return {"mean": round(self.mean, 6), "deviation": deviation, "median": round(self.median, 6)}


@dataclass(frozen=True)
class Group:
    """All passes under the same conditions."""

    conditions: Mapping[str, int]
    """Such as `loaders`."""
    seconds: Spread
    """Seconds of a pass; if it consists of calls, of a call."""
    images_per_s: Spread
    busy: float
    """Cores that this process kept busy, median."""
    idle: float
    """Idle cores of the machine, median."""

    def __getitem__(self, condition: str) -> int:
        """The value of a condition."""
        return self.conditions[condition]

    def cells(self) -> list[Any]:
        """Its row of the table."""
        spreads = [(1000 * self.seconds.mean, 1000 * self.seconds.deviation, 2)]
        spreads.append((self.images_per_s.median, self.images_per_s.deviation, 0))
        pairs = [(Number(value, digits), "-" if math.isnan(spread) else Number(spread, digits)) for value, spread, digits in spreads]
        return [*self.conditions.values(), *pairs[0], *pairs[1], Number(self.busy, 1), Number(self.idle, 1)]

    def record(self) -> dict[str, Any]:
        """Its entry in summary.json."""
        spreads = {"seconds": self.seconds.figures(), "images_per_s": self.images_per_s.figures()}
        return {**self.conditions, **spreads, "busy_cores": round(self.busy, 2), "idle_cores": round(self.idle, 2)}


def grouped(rows: Sequence[Mapping[str, Any]], *conditions: str) -> list[Group]:
    """The passes grouped by their conditions, in order."""
    groups: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in conditions), []).append(row)
    return [_group(dict(zip(conditions, key, strict=True)), some) for key, some in sorted(groups.items())]


def _group(conditions: dict[str, int], some: Sequence[Mapping[str, Any]]) -> Group:
    images = [one["images"] if "images" in one else one["calls"] * one["batch"] for one in some]
    return Group(
        conditions,
        Spread(tuple(one["seconds"] / one.get("calls", 1) for one in some)),
        Spread(tuple(count / one["seconds"] for count, one in zip(images, some, strict=True))),
        statistics.median(one["cpu_seconds"] / one["seconds"] for one in some),
        statistics.median(one["idle_seconds"] / one["seconds"] for one in some),
    )


class Machine:
    """The host on which passes were timed."""

    def __init__(self, name: str, facts: Mapping[str, Any]):
        """Take hardware and versions from a host's probe; `record` is their entry in summary.json."""
        python = facts["python"]
        versions = {"python": python["version"], "packages": python["packages"]}
        self.record: dict[str, Any] = {"name": name, **{key: facts[key] for key in FACTS}, **versions}

    def __str__(self) -> str:
        """One line: `node01: Cortex-A72, 4 cores`."""
        host = self.record
        quota = f", {host['cpu_quota']:g} of them granted" if host["cpu_quota"] and host["cpu_quota"] < host["cores"] else ""
        return f"{host['name']}: {host['model'] or host['machine']}, {count(host['cores'], 'core')}{quota}"

    def disturbed(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """A warning if other processes took a large part of the host during the passes, else an empty string."""
        seconds, ours, idle = (sum(row[key] for row in rows) for key in ("seconds", "cpu_seconds", "idle_seconds"))
        cores = self.record["cores"]
        others = cores - (ours + idle) / seconds
        # If a host is granted only a fraction of its machine, other processes on the rest do not matter.
        if seconds < SHORTEST_S or self.record["cpus"] < cores or others < OTHERS * cores:
            return ""
        return f"Warning: other processes took {others:.1f} of {count(cores, 'core')}; measure again on a quiet host."


def passes(number: int) -> str:
    """`1 pass`, `5 passes`."""
    return count(number, "pass" if number == 1 else "passe")


@dataclass(frozen=True)
class Picture:
    """Description of a picture of groups."""

    title: str
    x: str
    """The condition on the horizontal axis; each value of another one is a line."""
    label: str
    """Label of the horizontal axis."""
    panels: Mapping[str, Callable[[Group], Spread]]
    """From the top: label of the vertical axis, and its values."""
    logarithmic: bool = False


@dataclass(frozen=True)
class Conclusion:
    """Conclusion from the passes of a benchmark."""

    groups: list[Group]
    unit: str
    """Unit that a time is of: `pass` or `call`."""
    sentences: list[str]
    record: dict[str, Any]
    """Further contents of summary.json."""
    picture: Picture
    following: tuple[str, str]
    """The next command, with its purpose."""

    def table(self) -> str:
        """The table for the terminal."""
        columns = (f"ms per {self.unit} (mean)", "± deviation", "images/s (median)", "± deviation", "busy cores", "idle cores")
        return table([*self.groups[0].conditions, *columns], [group.cells() for group in self.groups])

    def draw(self, host: str, path: Path) -> None:
        """Draw means with bars of one standard deviation."""
        picture, lines = self.picture, dict[str, list[Group]]()
        for group in self.groups:
            name = ", ".join(count(value, name.removesuffix("s")) for name, value in group.conditions.items() if name != picture.x)
            lines.setdefault(name, []).append(group)
        with plotting.picture(path, 3.0 + 1.2 * len(picture.panels)) as figure:
            all_axes = figure.subplots(len(picture.panels), 1, sharex=True, squeeze=False)[:, 0]
            plotting.write_title(figure, picture.title)
            all_axes[0].set_title(host, loc="left", color="#333333")
            for axes, (label, of) in zip(all_axes, picture.panels.items(), strict=True):
                for index, (name, some) in enumerate(lines.items()):
                    means, deviations = [of(group).mean for group in some], [of(group).deviation for group in some]
                    axes.errorbar(
                        [one[picture.x] for one in some], means, deviations, label=name, mfc="white", **plotting.line_style(index)
                    )
                axes.set_ylabel(label)
                axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
                plotting.start_at_zero(axes)
            axes.set_xlabel(picture.label)
            if picture.logarithmic:
                axes.set_xscale("log")
                axes.xaxis.set_minor_locator(NullLocator())
            positions = sorted({group[picture.x] for group in self.groups})
            if len(positions) < scaling_plots.MANY_TICKS:
                axes.set_xticks(positions, [f"{position:,}" for position in positions])
            if len(lines) > 1:
                axes.legend()
            repeats = len(self.groups[0].seconds.values)
            note = f"Means of {repeats} passes; bars: ± standard deviation." if repeats > 1 else "One pass each: no bars."
            plotting.footnote(figure, f"{note} A warm-up is left out.")
