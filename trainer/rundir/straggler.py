"""Detection of a slow worker: one rule for the nodes and for the control node. Pure functions.

A synchronous step is as slow as its slowest host. That host is not the one that waits longest in the all-reduce: the
other workers wait there for the slow one. So hosts are compared by their own work: everything except the all-reduce. A slow link shows
in nobody's own work; there the rates of the connections are compared.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainer.host.host_load import Load

SLOWER = 1.10
"""A host counts as slow from this multiple of the others' median; less is within the variation of a shared machine."""


def own_work(phases: Mapping[str, float]) -> float:
    """A host's own work in a step, in the unit of `phases`: everything except the all-reduce, in which it waits for the others."""
    return sum(value for phase, value in phases.items() if phase != "all_reduce")


def slowest(own: Mapping[str, float]) -> tuple[str, float, float] | None:
    """The host with the most own work, that work, and its ratio to the others' median.

    None for fewer than two hosts.
    """
    if len(own) < 2:
        return None
    name = max(own, key=lambda host: own[host])
    usual = statistics.median(value for host, value in own.items() if host != name)
    return name, own[name], own[name] / usual if usual else math.inf


@dataclass(frozen=True)
class Straggler:
    """A worker for which the others wait."""

    rank: int
    cause: str
    """One of `CAUSES`."""
    own_us: int
    """Its own work in a step, microseconds; of a slow link, what its bytes take, at most the all-reduce."""
    others_us: int
    """The median of the others."""
    value: int
    """Value on its host, in the unit of the `Load` field that names the cause."""
    usual: int
    """The median of the others."""


Symptom = Callable[[Load, Load], bool]
"""Returns whether a slow worker's load, beside the median of the other workers', shows a cause."""
SURELY_SLOWER = 1.25
"""A host without a visible cause is named from this multiple of the others' median: medians of a few steps vary."""
PAGING = 10
"""Pages per second read from disk, beyond three times the others', that make a host slow."""
FULL = 750
"""Memory in use, in thousandths of its limit, from which pages are read again because there was no room for them."""
NOTICEABLE = 0.05
"""Share of a worker's CPUs that others must use to be named."""
SLOW_CLOCK = 0.85
LESS_CPU = 0.95
SLOW_LINK = 0.5
"""A link counts as slow below this share of the others' rate."""
INEXACT = 2
"""How much longer than the all-reduce a link may seem to take for its rate to be believed."""


def _reads(name: str) -> Symptom:
    """Symptom of many more pages read from disk than elsewhere."""
    return lambda load, usual: getattr(load, name) > 3 * getattr(usual, name) + PAGING


def _waits_for_input(load: Load, usual: Load) -> bool:
    return 2 * (load.input_us - usual.input_us) >= load.own_us - usual.own_us


def _taken(name: str) -> Symptom:
    """Symptom of noticeably more of this host's CPUs taken by other work than elsewhere."""
    return lambda load, usual: getattr(load, name) - getattr(usual, name) >= NOTICEABLE * load.limit


_swapping, _paging = _reads("swapped"), _reads("faults")


SYMPTOMS: dict[str, tuple[str, Symptom]] = {
    "memory": ("memory", lambda load, usual: _swapping(load, usual) or (_paging(load, usual) and load.memory >= FULL)),
    "disk": ("input_us", lambda load, usual: _waits_for_input(load, usual) or _paging(load, usual)),
    "heat": ("heat", lambda load, usual: load.heat > usual.heat),
    "steal": ("steal", _taken("steal")),
    "quota": ("limit", lambda load, usual: load.limit < LESS_CPU * usual.limit),
    "load": ("others", _taken("others")),
    "clock": ("clock", lambda load, usual: 0 < load.clock < SLOW_CLOCK * usual.clock),
}
"""Causes of a slow host, each with the number of `Load` that shows it; the first that applies is named."""
LINK, UNKNOWN = "link", "unknown"
CAUSES = (*SYMPTOMS, LINK, UNKNOWN)


def diagnose(loads: Sequence[Load], sent_bytes: int) -> Straggler | None:
    """The worker for which the others wait, and why; None if there is none, or if a worker has not profiled enough steps.

    Args:
        loads: by rank, over the same steps.
        sent_bytes: that a worker sends in a step.
    """
    if len(loads) < 2 or not all(load.own_us for load in loads):
        return None
    slow = _slow_host(loads)
    if slow and slow.cause != UNKNOWN:
        return slow
    return _slow_link(loads, sent_bytes) or slow


def _slow_host(loads: Sequence[Load]) -> Straggler | None:
    """The worker with more own work than the others, from a ratio that depends on whether its host shows a cause."""
    compared = slowest({str(rank): load.own_us for rank, load in enumerate(loads)})
    if compared is None or compared[2] < SLOWER:
        return None
    rank = int(compared[0])
    own, usual = loads[rank], _median(load for number, load in enumerate(loads) if number != rank)
    cause = next((name for name, (_, shows) in SYMPTOMS.items() if shows(own, usual)), UNKNOWN)
    if cause == UNKNOWN and compared[2] < SURELY_SLOWER:
        return None
    field = SYMPTOMS[cause][0] if cause in SYMPTOMS else "clock"
    return Straggler(rank, cause, own.own_us, usual.own_us, getattr(own, field), getattr(usual, field))


def _slow_link(loads: Sequence[Load], sent_bytes: int) -> Straggler | None:
    """The worker whose best connection is slow, if its bytes make a step that much longer.

    The kernel measures a rate whenever something is sent: after a few small messages, or while the receiver is busy, it may be far
    below what the link carries. The all-reduce, which ends when all bytes have arrived, tells: the worker that comes last to it waits
    for nobody. Its bytes may pass as many times faster as there are connections that share the link.
    """
    rank = min(range(len(loads)), key=lambda number: loads[number].rate)
    usual = _median(load for number, load in enumerate(loads) if number != rank)
    rate = loads[rank].rate
    if not 0 < rate < SLOW_LINK * usual.rate:
        return None
    taken, others = (round(1000 * sent_bytes / one) for one in (rate, usual.rate))
    reduced = min(load.reduced_us for load in loads)
    if taken > INEXACT * (len(loads) - 1) * reduced:
        return None
    taken = min(taken, reduced)
    longer = taken - others >= (SLOWER - 1) * usual.own_us
    return Straggler(rank, LINK, taken, others, rate, usual.rate) if longer else None


def _median(loads: Iterable[Load]) -> Load:
    rows = zip(*(load.row() for load in loads), strict=True)
    return Load(*(round(statistics.median(column)) for column in rows))
