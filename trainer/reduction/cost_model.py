"""Cost of a step's sums, and `reduction.name: auto`: compress if sending all gradients would take too long. Pure arithmetic.

The doctor's prediction and a sweep's model of a step count messages and bytes here, too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config.schema import Reduction
from trainer.reduction.low_rank import FactorSizes

FRACTION = 0.10
"""Gradients are compressed if sending them all would take more than this fraction of a step's own work."""
FLOAT, HALF = 4, 2
"""Bytes per number."""
COUNTED = 16
"""Bytes of the counts and losses that every step sums, too."""
DIRECT, TENSORFLOW = "direct", "tensorflow"
"""How gradients travel: see `reduction.transport`."""


@dataclass(frozen=True)
class Choice:
    """The chosen method, and why."""

    name: str
    """`packed` or `powersgd`."""
    why: str
    """Completes the sentence `gradients are sent ...`."""
    sent_bytes: int
    """Bytes per worker that are summed in each step, without counts and losses (16 bytes)."""
    measured: bool = False
    """True if measured just now: another measurement may lead to another choice."""
    transport: str = DIRECT
    sums: tuple[int, ...] = ()
    """Bytes of each all-reduce of a step, in order; empty for one worker."""


@dataclass(frozen=True)
class GradientTraffic:
    """Bytes that a step of gradients of these shapes sends, by method."""

    config: Reduction
    shapes: Sequence[tuple[int, ...]]

    def choose(self, own: float, sending: float) -> Choice:
        """The method; the slowest worker takes `own` seconds for a step's work, `sending` for all gradients in float32."""
        packed, compressed = self.sent_bytes("packed"), self.sent_bytes("powersgd")
        cost = f"all of them would take {_ms(sending)}, {sending / own:.0%} of the {_ms(own)} of a step's own work"
        if compressed == packed:
            return Choice("packed", f"as they are: none is large enough to compress ({cost})", packed, measured=True)
        if not worth_compressing(own, sending):
            return Choice("packed", f"as they are: {cost}; from {FRACTION:.0%} on they are compressed", packed, measured=True)
        smaller = f"{compressed / 1e3:,.0f} kB instead of {packed / 1e3:,.0f}"
        why = f"compressed (PowerSGD, rank {self.config.rank}, {smaller}): {cost}, more than {FRACTION:.0%}"
        return Choice("powersgd", why, compressed, measured=True)

    def sent_bytes(self, name: str) -> int:
        """Bytes per worker that are summed in each step with the method of that name."""
        if name == "powersgd":
            small = sum(FLOAT * math.prod(shape) for shape, sizes in self._factored() if sizes is None)
            return small + self._left + self._right
        return sum((HALF if name == "half" and len(shape) > 1 else FLOAT) * math.prod(shape) for shape in self.shapes)

    def sums(self, name: str, transport: str) -> tuple[int, ...]:
        """Bytes of each all-reduce of a step, in order: PowerSGD has two, and on the host sends small tensors with the second."""
        whole = self.sent_bytes(name)
        if name != "powersgd" or not self._left:
            return (whole + COUNTED,)
        if transport == DIRECT:
            return (self._left, whole - self._left + COUNTED)
        return (whole - self._right + COUNTED, self._right)

    def _factored(self) -> list[tuple[tuple[int, ...], FactorSizes | None]]:
        return [(shape, FactorSizes.of(shape, self.config)) for shape in self.shapes]

    @property
    def _left(self) -> int:
        number = HALF if self.config.dtype == "bfloat16" else FLOAT
        return sum(number * sizes.rank * sizes.rows for _, sizes in self._factored() if sizes is not None)

    @property
    def _right(self) -> int:
        return sum(FLOAT * sizes.factors * sizes.columns for _, sizes in self._factored() if sizes is not None)


def worth_compressing(own: float, sending: float) -> bool:
    """Return whether sending all gradients (seconds) takes too much of a step beside the slowest worker's own work (seconds)."""
    return sending > FRACTION * own


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
