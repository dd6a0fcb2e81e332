"""What a step is made of, on each host, from the steps that were taken apart. Reads files; the rest are pure functions.

A synchronous step is as slow as its slowest host. That host is not the one that waits longest in the
all-reduce: the others wait there for it. So hosts are compared by their own work, which is all but the all-reduce.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.analysis import text
from trainer.telemetry import PHASES, read_records

OWN = ("input", "forward_backward", "apply")
"""Phases of a step that one worker has, too."""
WHOLE = 0.9
"""A step counts when it has at least this share of the images of the largest; the last of an epoch may have few."""
SLOWER = 1.10
"""A host is called slow from this many times the others' median on; less is within what a shared machine varies by."""
TITLES = {"forward_backward": "forward/backward", "all_reduce": "all-reduce"}


def read(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Records of steps taken apart by host, of all launches of a run, oldest first; hosts without any are left out.

    So are steps with fewer images than the others.

    Args:
        run: the run directory, with `workers/<host>/metrics.jsonl` and those of earlier launches beside it.

    Raises:
        LockstepError: a line that is no record; a torn last line is not yet one, and left out.
    """
    found = {}
    for folder in sorted(path for path in run.glob("workers/*") if path.is_dir()):
        files = [*sorted(folder.glob("metrics-*.jsonl")), folder / "metrics.jsonl"]
        records = [record for path in files for record in of_worker(read_records(path))]
        if records:
            found[folder.name] = whole(records)
    return found


def of_worker(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of a worker's records that tell what a step is made of."""
    return [record for record in records if record["kind"] == "split"]


def whole(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One host's samples without those of ragged steps, which have fewer images: the last of an epoch takes what is left."""
    images = [sample.get("images", 0) for sample in samples]
    return [sample for sample, count in zip(samples, images, strict=True) if count >= WHOLE * max(images)]


def median(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds of every phase, in order: the median over one host's whole steps. Empty without samples."""
    found = whole(samples)
    return {phase: 1000 * statistics.median(sample[phase] for sample in found) for phase in PHASES} if found else {}


def medians(samples: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Milliseconds of every phase by host; hosts without samples are left out."""
    return {host: median(records) for host, records in samples.items() if records}


def own_work(phases: dict[str, float]) -> float:
    """Milliseconds of a step that a host works itself: all but the all-reduce, in which it waits for the others."""
    return sum(value for phase, value in phases.items() if phase != "all_reduce")


def own_seconds(samples: Mapping[str, Sequence[dict[str, Any]]]) -> float:
    """Seconds of a step's own work on the slowest host, for which all wait: the median over its samples.

    Without compression, which is for the others: one worker does none of it.
    """
    return max(statistics.median(sum(sample[phase] for phase in OWN) for sample in whole(records)) for records in samples.values())


def slowest(hosts: dict[str, dict[str, float]]) -> tuple[str, float, float] | None:
    """The host with the most work of its own, that work in milliseconds, and its factor over the others' median.

    None for fewer than two hosts.
    """
    if len(hosts) < 2:
        return None
    own = {host: own_work(phases) for host, phases in hosts.items()}
    name = max(own, key=lambda host: own[host])
    usual = statistics.median(value for host, value in own.items() if host != name)
    return name, own[name], own[name] / usual if usual else math.inf


def sentence(hosts: dict[str, dict[str, float]]) -> str:
    """Which host is the slowest, and by how much; empty for fewer than two hosts."""
    found = slowest(hosts)
    if found is None:
        return ""
    name, own, factor = found
    if factor < SLOWER:
        return f"No host is slower than the others by more than {SLOWER - 1:.0%}: the slowest, {name}, by {factor - 1:.0%}."
    others = [host for host in hosts if host != name]
    whose, who_waits = ("the others' median", "the others wait") if len(others) > 1 else (f"that of {others[0]}", f"{others[0]} waits")
    work = f"{_milliseconds(own)} of its own work a step, {factor:.2f} times {whose}"
    return f"{name} is the slowest: {work}; {who_waits} for it in the all-reduce."


def _milliseconds(value: float) -> str:
    return f"{value:,.{0 if value >= 10 else 1}f} ms"


def table(hosts: dict[str, dict[str, float]]) -> str:
    """A row a host: milliseconds of every phase, of its own work and of the whole step."""
    header = ["host", *(TITLES.get(phase, phase) for phase in PHASES), "own work", "step"]
    rows = [[host, *(text.Number(value, 1) for value in _columns(phases))] for host, phases in hosts.items()]
    return text.table(header, rows)


def _columns(phases: dict[str, float]) -> list[float]:
    return [*(phases[phase] for phase in PHASES), own_work(phases), sum(phases.values())]


def shown(hosts: dict[str, dict[str, float]]) -> str:
    """Heading, table and sentence for the terminal; empty when no step has been taken apart yet."""
    if not hosts:
        return ""
    parts = ["A step in milliseconds (median of the steps taken apart)", table(hosts), "  " + sentence(hosts)]
    return "\n".join(part for part in parts if part.strip())
