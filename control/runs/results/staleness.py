"""How stale the updates of an asynchronous run were."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

KIND = "staleness"
"""Kind of the records that the chief writes after each epoch."""


def calls_by_staleness(records: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """How many calls had which staleness, over all epochs among a chief's records."""
    stale = Counter[int]()
    for record in records:
        if record["kind"] == KIND:
            stale.update(dict(zip(record["staleness"], record["calls"], strict=False)))
    return stale


def staleness(calls: Mapping[int, int]) -> str:
    """By how many steps of others the weights had changed when a call's update came, given how many calls had which number."""
    values = sorted(Counter(calls).elements())
    if not values:
        return "no call has ended"
    middle, late = (values[int(share * (len(values) - 1))] for share in (0.5, 0.99))
    return f"median {middle}, 99% at most {late}, largest {values[-1]} steps of others between reading and updating the weights"
