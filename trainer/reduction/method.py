"""The interface of all reductions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Compute = Callable[[list[Any]], tuple[list[Any], list[Any]]]
"""Maps its input tensors to those that stay and those that are sent.

Sent tensors are summed over all workers, and `[*stayed, *summed]` is the input of the next computation.
The last computation sends nothing. Tensors in replica context, or arrays on the host.
"""
NEGLIGIBLE = 1e-6
"""A factor that keeps less than this fraction of its length when made orthogonal lies in the others' span."""


class LowRank(NamedTuple):
    """A gradient `leftᵀ right` whose product is never formed: the optimizer applies the factors.

    Also a form in which methods may take a worker's own gradient of a fully connected layer: one factor per image.
    """

    left: Any
    """`[factors, rows]`; orthonormal or 0 for an update, the layer's inputs for a layer."""
    right: Any
    """`[factors, columns]`; the gradients of the layer's outputs for a layer."""


class Shapes(NamedTuple):
    """Shapes of the arrays that represent one gradient."""

    sent: tuple[int, ...]
    """Shape of the first sum: the new left factors."""
    left: tuple[int, ...]
    right: tuple[int, ...]


@dataclass(frozen=True)
class Method:
    """A reduction built for one model."""

    computations: list[Compute]
    memory: Sequence[Any] = ()
    """Variables, or what has their `shape`, `numpy` and `assign`, that differ between workers: each saves its own."""
    low_rank: Mapping[int, Shapes] = field(default_factory=dict)
    """Gradients, by number, that come out as `LowRank`. If any do, the computations take and return arrays
    on the host. The first takes these gradients; the second takes the sums, the other gradients, and what the first
    sent. The result is the left factors, the sums, the other gradients, the right factors."""


@dataclass(frozen=True)
class Setting:
    """Where a method runs."""

    parts: int
    """How many parts are summed: the devices of all workers."""
    on_host: bool = True
    """True if gradients are in host memory and are sent from there, so that compiled loops can use them in place."""
    threads: int = 1
    seed: int = 1


def plain() -> Method:
    """All gradients in float32, as they are."""
    return Method([_send_all, _keep_all])


def _send_all(values: list[Any]) -> tuple[list[Any], list[Any]]:
    return [], values


def _keep_all(values: list[Any]) -> tuple[list[Any], list[Any]]:
    return values, []
