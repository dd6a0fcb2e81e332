"""Shared code of the single-host benchmarks: statistics of repeats, the host in one line, the files of a result."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.analysis.benchmark import ROWS
from control.campaign import SUMMARY
from control.text import Number, count
from trainer.files import write_json, write_rows

FACTS = ("model", "cores", "cpu_quota", "cpus", "os", "machine", "memory", "load", "governors", "temperature", "throttled")
"""What matters for judging a measurement, from a host's probe."""


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


@dataclass(frozen=True)
class Passes:
    """All passes under the same conditions."""

    seconds: Spread
    """Of a pass; if it consists of calls, of a call."""
    images_per_s: Spread
    busy: float
    """Cores that this process kept busy, median."""
    idle: float
    """Idle cores of the machine, median."""

    @classmethod
    def grouped(cls, passes: Sequence[Mapping[str, Any]], *conditions: str) -> list[Self]:
        """The passes grouped by their conditions, which are the fields of the class, in order."""
        groups: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}
        for one in passes:
            groups.setdefault(tuple(one[name] for name in conditions), []).append(one)
        return [cls(*_measured(some), *key) for key, some in sorted(groups.items())]

    def cores(self) -> dict[str, float]:
        """Busy and idle cores for summary.json."""
        return {"busy_cores": round(self.busy, 2), "idle_cores": round(self.idle, 2)}

    def core_cells(self) -> list[Number]:
        """Busy and idle cores for a table."""
        return [Number(self.busy, 1), Number(self.idle, 1)]


def _measured(some: Sequence[Mapping[str, Any]]) -> tuple[Spread, Spread, float, float]:
    images = [one["images"] if "images" in one else one["calls"] * one["batch"] for one in some]
    return (
        Spread(tuple(one["seconds"] / one.get("calls", 1) for one in some)),
        Spread(tuple(count / one["seconds"] for count, one in zip(images, some, strict=True))),
        statistics.median(one["cpu_seconds"] / one["seconds"] for one in some),
        statistics.median(one["idle_seconds"] / one["seconds"] for one in some),
    )


CORES = ("busy cores", "idle cores")
"""Columns of `Passes.core_cells`."""
CERTAIN = 2.0
"""Two measurements differ if their means differ by more than this many times the spread of the repeats."""
OTHERS = 0.2
"""Other processes spoil a measurement if they take more than this fraction of the cores."""
SHORTEST_S = 1.0
"""The kernel counts idle time in hundredths of a second, which is too coarse for anything shorter than this."""


def differ(one: Spread, other: Spread) -> bool:
    """Whether two measurements differ by more than their repeats do; false for single repeats."""
    return abs(one.mean - other.mean) > CERTAIN * math.hypot(one.deviation, other.deviation)


def disturbed(host: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """A warning if other processes took a large part of the host during the passes, else an empty string."""
    seconds, ours, idle = (sum(row[key] for row in rows) for key in ("seconds", "cpu_seconds", "idle_seconds"))
    others = host["cores"] - (ours + idle) / seconds
    # If a host is granted only a fraction of its machine, other processes on the rest do not matter.
    if seconds < SHORTEST_S or host["cpus"] < host["cores"] or others < OTHERS * host["cores"]:
        return ""
    return f"Warning: other processes took {others:.1f} of {count(host['cores'], 'core')}; measure again on a quiet host."


def machine(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Hardware and versions of a host, from its probe."""
    python = facts["python"]
    return {"name": name, **{key: facts[key] for key in FACTS}, "python": python["version"], "packages": python["packages"]}


def about(host: Mapping[str, Any]) -> str:
    """The host in one line: `node01: Cortex-A72, 4 cores`."""
    quota = f", {host['cpu_quota']:g} of them granted" if host["cpu_quota"] and host["cpu_quota"] < host["cores"] else ""
    return f"{host['name']}: {host['model'] or host['machine']}, {count(host['cores'], 'core')}{quota}"


def passes(number: int) -> str:
    """`1 pass`, `5 passes`."""
    return count(number, "pass" if number == 1 else "passe")


def write(folder: Path, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Write `results.csv`, one row per pass, and `summary.json`."""
    rounded = [{key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()} for row in rows]
    write_rows(folder / ROWS, list(rows[0]), rounded)
    write_json(folder / SUMMARY, summary)


def deviation(spread: Spread, decimals: int) -> Number | str:
    """The standard deviation for a table; `-` for a single repeat."""
    return "-" if math.isnan(spread.deviation) else Number(spread.deviation, decimals)


def figures(spread: Spread, digits: int = 6) -> dict[str, float | None]:
    """Mean, standard deviation (null for a single repeat) and median, for summary.json."""
    deviation = None if math.isnan(spread.deviation) else round(spread.deviation, digits)
    return {"mean": round(spread.mean, digits), "deviation": deviation, "median": round(spread.median, digits)}


def error_bars(axes: Any, positions: Sequence[float], spreads: Sequence[Spread], **style: Any) -> None:
    """Draw means with bars of one standard deviation."""
    axes.errorbar(positions, [one.mean for one in spreads], [one.deviation for one in spreads], mfc="white", mew=1.5, **style)


def bars_note(passes: int, dots: str = "") -> str:
    """What the bars of a picture show, and its dots."""
    return f"Means of {passes} passes; bars: ± standard deviation{dots}." if passes > 1 else "One pass each: no bars."
