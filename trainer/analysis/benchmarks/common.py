"""What the benchmarks of one host have in common: repeats in a few numbers, the host in a line, the files of a result."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.analysis.text import Number, count
from trainer.files import write_json, write_rows

FACTS = ("model", "cores", "cpu_quota", "cpus", "os", "machine", "memory", "load", "governors", "temperature", "throttled")
"""Of a host's probe, what a measurement is to be judged by."""


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
"""Two measurements differ when their means do by more than so many times what repeats differ by."""
OTHERS = 0.2
"""Share of the cores above which what other processes take spoils a measurement."""
SHORTEST_S = 1.0
"""The kernel counts idle time in hundredths of a second: over less than this it says nothing."""


def told_apart(one: Spread, other: Spread) -> bool:
    """Whether two measurements differ by more than their repeats do; never known from single repeats."""
    return abs(one.mean - other.mean) > CERTAIN * math.hypot(one.deviation, other.deviation)


def disturbed(host: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """A warning when other processes took a good part of the host during the passes, else an empty text.

    Args:
        host: as of `machine`.
        rows: of all passes.
    """
    seconds, ours, idle = (sum(row[key] for row in rows) for key in ("seconds", "cpu_seconds", "idle_seconds"))
    others = host["cores"] - (ours + idle) / seconds
    # Of a host that is granted a share of its machine, what the others do there is none of its business.
    if seconds < SHORTEST_S or host["cpus"] < host["cores"] or others < OTHERS * host["cores"]:
        return ""
    return f"Take care: other processes took {others:.1f} of {count(host['cores'], 'core')}; measure again on a quiet host."


def machine(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Hardware and versions of a host, from its probe."""
    python = facts["python"]
    return {"name": name, **{key: facts[key] for key in FACTS}, "python": python["version"], "packages": python["packages"]}


def about(host: Mapping[str, Any]) -> str:
    """The host in a line: `node01: Cortex-A72, 4 cores`."""
    quota = f", {host['cpu_quota']:g} of them granted" if host["cpu_quota"] and host["cpu_quota"] < host["cores"] else ""
    return f"{host['name']}: {host['model'] or host['machine']}, {count(host['cores'], 'core')}{quota}"


def passes(number: int) -> str:
    """`1 pass`, `5 passes`."""
    return count(number, "pass" if number == 1 else "passe")


def write(folder: Path, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """`results.csv`, one row a pass, and `summary.json`."""
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
