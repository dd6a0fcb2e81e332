"""Shared code of the single-host benchmarks: statistics of repeats, the host in one line, the files of a result."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


CERTAIN = 2.0
"""Two measurements differ if their means differ by more than this many times the spread of the repeats."""
OTHERS = 0.2
"""Other processes spoil a measurement if they take more than this fraction of the cores."""
SHORTEST_S = 1.0
"""The kernel counts idle time in hundredths of a second, which is too coarse for anything shorter than this."""


def told_apart(one: Spread, other: Spread) -> bool:
    """Whether two measurements differ by more than their repeats do; false for single repeats."""
    return abs(one.mean - other.mean) > CERTAIN * math.hypot(one.deviation, other.deviation)


def disturbed(host: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """A warning if other processes took a large part of the host during the passes, else an empty string.

    Args:
        host: from `machine`.
        rows: of all passes.
    """
    seconds, ours, idle = (sum(row[key] for row in rows) for key in ("seconds", "cpu_seconds", "idle_seconds"))
    others = host["cores"] - (ours + idle) / seconds
    # If a host is granted only a fraction of its machine, other processes on the rest do not matter.
    if seconds < SHORTEST_S or host["cpus"] < host["cores"] or others < OTHERS * host["cores"]:
        return ""
    return f"Take care: other processes took {others:.1f} of {count(host['cores'], 'core')}; measure again on a quiet host."


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
    write_rows(folder / "results.csv", list(rows[0]), rounded)
    write_json(folder / "summary.json", summary)


def deviation(spread: Spread, decimals: int) -> Number | str:
    """The standard deviation for a table; `-` for a single repeat."""
    return "-" if math.isnan(spread.deviation) else Number(spread.deviation, decimals)


def figures(spread: Spread, digits: int = 6) -> dict[str, float | None]:
    """Mean, standard deviation (null for a single repeat) and median, for summary.json."""
    deviation = None if math.isnan(spread.deviation) else round(spread.deviation, digits)
    return {"mean": round(spread.mean, digits), "deviation": deviation, "median": round(spread.median, digits)}
