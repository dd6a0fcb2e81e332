"""The phases of a step on each host, from profiled steps. `read_profiles` reads files; the other functions are pure.

`trainer.rundir.straggler` decides which host is the slowest, and from which difference on it counts as slow.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from control.common import text
from control.remote.worker_files import read_records
from trainer.rundir import straggler
from trainer.rundir.schemas import PHASES

SLOWER, own_work = straggler.SLOWER, straggler.own_work
WHOLE = 0.9
"""Smallest share of the largest step's images with which a step counts: the last step of an epoch may be smaller."""
TITLES = {"forward_backward": "forward/backward", "all_reduce": "all-reduce"}
HEADER = ["host", *(TITLES.get(phase, phase) for phase in PHASES), "own work", "step"]


def read_profiles(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Records of profiled steps, by host, over all launches of a run, oldest first.

    Hosts without such steps, and steps with fewer images than the others, are left out.

    Args:
        run: the run directory, with `workers/<host>/metrics.jsonl` and those of earlier launches beside it.

    Raises:
        LockstepError: an invalid line; a torn last line is left out.
    """
    samples = {}
    for folder in sorted(path for path in run.glob("workers/*") if path.is_dir()):
        files = [*sorted(folder.glob("metrics-*.jsonl")), folder / "metrics.jsonl"]
        records = [record for path in files for record in of_worker(read_records(path))]
        if records:
            samples[folder.name] = _full_steps(records)
    return samples


def of_worker(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of a worker that hold a profiled step."""
    return [record for record in records if record["kind"] == "split"]


def _full_steps(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One host's samples without ragged steps: the last step of an epoch takes the remaining images."""
    images = [sample.get("images", 0) for sample in samples]
    return [sample for sample, count in zip(samples, images, strict=True) if count >= WHOLE * max(images)]


def median(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds of every phase, in order: the median over one host's whole steps. Empty without samples."""
    steps = _full_steps(samples)
    return {phase: 1000 * statistics.median(sample[phase] for sample in steps) for phase in PHASES} if steps else {}


def medians(samples: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Milliseconds of every phase by host; hosts without samples are left out."""
    return {host: median(records) for host, records in samples.items() if records}


def own_seconds(samples: Mapping[str, Sequence[dict[str, Any]]]) -> float:
    """Seconds of own work per step on the host for which all wait (`decisive`): the median over its samples."""
    own = {host: [own_work({phase: one[phase] for phase in PHASES}) for one in _full_steps(records)] for host, records in samples.items()}
    return decisive({host: statistics.median(seconds) for host, seconds in own.items()})


def decisive(own: Mapping[str, float]) -> float:
    """The own work of the slowest host, if it counts as slow.

    Equal hosts count as one, with their median, because by chance the largest of several measurements grows with their number.
    """
    compared = straggler.slowest(own)
    return compared[1] if compared and compared[2] >= SLOWER else statistics.median(own.values())


def sentence(hosts: dict[str, dict[str, float]]) -> str:
    """Sentence on the slowest host and its delay; empty for fewer than two hosts."""
    comparison = straggler.slowest({host: own_work(phases) for host, phases in hosts.items()})
    if comparison is None:
        return ""
    name, own, factor = comparison
    if factor < SLOWER:
        return f"No host is slower than the others by more than {SLOWER - 1:.0%}: the slowest, {name}, by {factor - 1:.0%}."
    others = [host for host in hosts if host != name]
    whose, who_waits = ("the others' median", "the others wait") if len(others) > 1 else (f"that of {others[0]}", f"{others[0]} waits")
    work = f"{_milliseconds(own)} of its own work per step, {factor:.2f} times {whose}"
    return f"{name} is the slowest: {work}; {who_waits} for it in the all-reduce."


def _milliseconds(value: float) -> str:
    return f"{value:,.{0 if value >= 10 else 1}f} ms"


def _table(hosts: dict[str, dict[str, float]]) -> str:
    """Table with one row per host: milliseconds of every phase, of own work and of the whole step."""
    return text.table(HEADER, [[host, *(text.Number(value, 1) for value in columns(phases))] for host, phases in hosts.items()])


def columns(phases: dict[str, float]) -> list[float]:
    """Cells of a host's row below `HEADER`."""
    return [*(phases[phase] for phase in PHASES), own_work(phases), sum(phases.values())]


def profile_text(hosts: dict[str, dict[str, float]]) -> str:
    """Heading, table and sentence for the terminal; empty if no step has been profiled."""
    if not hosts:
        return ""
    parts = ["A step in milliseconds (median of the profiled steps)", _table(hosts), "  " + sentence(hosts)]
    return "\n".join(part for part in parts if part.strip())
