"""`reduction.name: auto`: compress if sending all gradients would take too large a part of a step. Pure arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config import Reduction
from trainer.reduction.powersgd import factors_of, matrix_of, rank_of

SHARE = 0.10
"""Gradients are compressed if sending them all would take more than this fraction of a step's own work."""
FLOAT, HALF = 4, 2
"""Bytes per number."""


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
    """Whether it was measured just now: another measurement may lead to another choice."""


def choose(config: Reduction, shapes: Sequence[tuple[int, ...]], own: float, sending: float) -> Choice:
    """The method for these gradients; the slowest worker takes `own` seconds for a step's work, `sending` for all in float32."""
    packed_bytes, compressed_bytes = sent_bytes(config, "packed", shapes), sent_bytes(config, "powersgd", shapes)
    cost = f"all of them would take {_ms(sending)}, {sending / own:.0%} of the {_ms(own)} of a step's own work"
    if compressed_bytes == packed_bytes:
        return Choice("packed", f"as they are: none is large enough to compress ({cost})", packed_bytes, measured=True)
    if sending <= SHARE * own:
        return Choice("packed", f"as they are: {cost}; from {SHARE:.0%} on they are compressed", packed_bytes, measured=True)
    smaller = f"{compressed_bytes / 1e3:,.0f} kB instead of {packed_bytes / 1e3:,.0f}"
    why = f"compressed (PowerSGD, rank {config.rank}, {smaller}): {cost}, more than {SHARE:.0%}"
    return Choice("powersgd", why, compressed_bytes, measured=True)


def sent_bytes(config: Reduction, name: str, shapes: Sequence[tuple[int, ...]]) -> int:
    """Bytes per worker that are summed in each step with the method of that name."""
    if name == "powersgd":
        return sum(_compressed(config, shape) for shape in shapes)
    return sum((HALF if name == "half" and len(shape) > 1 else FLOAT) * math.prod(shape) for shape in shapes)


def _compressed(config: Reduction, shape: tuple[int, ...]) -> int:
    matrix = matrix_of(shape, config)
    if matrix is None:
        return FLOAT * math.prod(shape)
    rows, columns = matrix
    left = rank_of(matrix, config) * (HALF if config.dtype == "bfloat16" else FLOAT) * rows
    return left + factors_of(matrix, config) * FLOAT * columns


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
