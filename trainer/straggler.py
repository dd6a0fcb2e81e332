"""Whether one worker is slower than the others: one rule for the nodes and for the control node. Pure functions.

A synchronous step is as slow as its slowest host. That host is not the one that waits longest in the all-reduce: the
others wait there for it. So hosts are compared by their own work: everything except the all-reduce.
"""

import math
import statistics
from collections.abc import Mapping

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
