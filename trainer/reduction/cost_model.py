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


def choose(config: Reduction, shapes: Sequence[tuple[int, ...]], own: float, sending: float) -> Choice:
    """The method for these gradients; the slowest worker takes `own` seconds for a step's work, `sending` for all in float32."""
    packed_bytes, compressed_bytes = sent_bytes(config, "packed", shapes), sent_bytes(config, "powersgd", shapes)
    cost = f"all of them would take {_ms(sending)}, {sending / own:.0%} of the {_ms(own)} of a step's own work"
    if compressed_bytes == packed_bytes:
        return Choice("packed", f"as they are: none is large enough to compress ({cost})", packed_bytes, measured=True)
    if not worth_compressing(own, sending):
        return Choice("packed", f"as they are: {cost}; from {FRACTION:.0%} on they are compressed", packed_bytes, measured=True)
    smaller = f"{compressed_bytes / 1e3:,.0f} kB instead of {packed_bytes / 1e3:,.0f}"
    why = f"compressed (PowerSGD, rank {config.rank}, {smaller}): {cost}, more than {FRACTION:.0%}"
    return Choice("powersgd", why, compressed_bytes, measured=True)


def worth_compressing(own: float, sending: float) -> bool:
    """Return whether sending all gradients (seconds) takes too much of a step beside the slowest worker's own work (seconds)."""
    return sending > FRACTION * own


def sent_bytes(config: Reduction, name: str, shapes: Sequence[tuple[int, ...]]) -> int:
    """Bytes per worker that are summed in each step with the method of that name."""
    if name == "powersgd":
        return sum(_compressed(config, shape) for shape in shapes)
    return sum((HALF if name == "half" and len(shape) > 1 else FLOAT) * math.prod(shape) for shape in shapes)


def sums_of(config: Reduction, name: str, shapes: Sequence[tuple[int, ...]], transport: str) -> tuple[int, ...]:
    """Bytes of each all-reduce of a step, in order: PowerSGD has two, and sends small tensors with the second on the host, see there."""
    whole = sent_bytes(config, name, shapes)
    factored = [one for shape in shapes if (one := FactorSizes.of(shape, config)) is not None]
    left = sum(_left(config, one) for one in factored)
    if name != "powersgd" or not left:
        return (whole + COUNTED,)
    if transport == DIRECT:
        return (left, whole - left + COUNTED)
    right = sum(map(_right, factored))
    return (whole - right + COUNTED, right)


def _compressed(config: Reduction, shape: tuple[int, ...]) -> int:
    one = FactorSizes.of(shape, config)
    return FLOAT * math.prod(shape) if one is None else _left(config, one) + _right(one)


def _left(config: Reduction, one: FactorSizes) -> int:
    return (HALF if config.dtype == "bfloat16" else FLOAT) * one.rank * one.rows


def _right(one: FactorSizes) -> int:
    return FLOAT * one.factors * one.columns


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
