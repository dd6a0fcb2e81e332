"""Messages and bytes of the sums of a step, for the doctor's prediction and a sweep's model of a step."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.network.sockets_all_reduce import ONE_HOP
from trainer.reduction.cost_model import DIRECT

UNCOMPRESSED, COMPRESSED = "packed", "powersgd"
"""Methods that `auto` chooses from."""


@dataclass(frozen=True)
class Traffic:
    """Data that each of n workers sends in an all-reduce, and likewise receives."""

    hops: int = 0
    """Messages one after another: each can only be sent when the previous one has arrived."""
    messages: int = 0
    bytes: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        """Both, one after the other."""
        return Traffic(self.hops + other.hops, self.messages + other.messages, self.bytes + other.bytes)


def _traffic(transport: str, size: int, workers: int) -> Traffic:
    """One all-reduce of `size` bytes per worker.

    `tensorflow`: a ring, 2 (n - 1) hops of size / n (Patarasuk, Yuan, JPDC 69, 2009). `direct`: every worker sends the part that
    another one sums to it, and its own sum to all: 2 hops, as many bytes as the ring; what is small goes whole, in 1 hop.
    """
    others = workers - 1
    if not others:
        return Traffic()
    if transport == DIRECT and size * others <= ONE_HOP:
        return Traffic(1, others, float(size * others))
    return Traffic(2 if transport == DIRECT else 2 * others, 2 * others, 2 * others / workers * size)


def step_traffic(transport: str, sums: Sequence[int], workers: int) -> Traffic:
    """The traffic of all sums of a step, whose sizes are in bytes."""
    return sum((_traffic(transport, size, workers) for size in sums), Traffic())
