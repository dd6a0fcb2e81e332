"""How gradients are summed over the workers: one module a method, one interface.

What travels is a list of tensors. It begins as `[sums, *gradients]` of one worker: a short vector of
local sums (`[loss, images, correct, stop]`, float32) and this worker's part of the mean gradient. It
ends as the same list summed over all workers. In between a method computes and sends in turn, as often
as it needs to: `packed` once, `powersgd` twice. How it is sent is not its concern (`trainer.collective`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trainer.config import Reduction

if TYPE_CHECKING:
    import numpy as np

Compute = Callable[["list[Any]"], "tuple[list[Any], list[Any]]"]
"""Gives from the tensors at hand those that stay and those that are sent.

What is sent is summed over all workers, and `[*stayed, *summed]` are the tensors at hand of the next
computation. The last sends nothing. Tensors in replica context, or arrays on the host.
"""

NEGLIGIBLE = 1e-6
"""A factor that keeps less than this share of its length when it is made orthogonal lies in the others' span."""


class LowRank(NamedTuple):
    """A gradient `leftᵀ right` that is never built: the optimizer applies the factors.

    Also a worker's own gradient of a fully connected layer, as a method may take it: a factor an image.
    """

    left: Any
    """`[factors, rows]`; those of an update are orthonormal or 0, those of a layer its inputs."""
    right: Any
    """`[factors, columns]`; those of a layer are the gradients of its outputs."""


class Shapes(NamedTuple):
    """Of the arrays that stand for one gradient."""

    sent: tuple[int, ...]
    """The first sum, of new left factors."""
    left: tuple[int, ...]
    right: tuple[int, ...]


class Memory(Protocol):
    """What a method remembers from step to step; a `tf.Variable` is one."""

    @property
    def shape(self) -> Any:
        """Shape of the array."""

    def numpy(self) -> "np.ndarray":
        """Its values."""

    def assign(self, values: "np.ndarray") -> Any:
        """Overwrite them."""


@dataclass(frozen=True)
class Method:
    """A reduction made for one model."""

    computations: list[Compute]
    memory: "Sequence[Memory]" = ()
    """This worker's own: saved by each worker, and not the same on all."""
    low_rank: "Mapping[int, Shapes]" = field(default_factory=dict)
    """Which gradients, by number, come out as `LowRank`. If any do, the computations take
    and give arrays on the host: the first these gradients; the second the sums, the others, and what was sent of the
    first. They end with the left factors, the sums, the others, the right factors."""


@dataclass(frozen=True)
class Setting:
    """Where a method runs."""

    parts: int
    """How many sum: the devices of all workers."""
    on_host: bool = True
    """Whether gradients are in this machine's memory, and travel from there: compiled loops take them as they are."""
    threads: int = 1
    seed: int = 1


def make(config: Reduction, shapes: Sequence[tuple[int, ...]], setting: Setting) -> Method:
    """The method that a configuration names; one device alone has nobody to share with, and none.

    Args:
        config: the section `reduction`.
        shapes: of the gradients.
        setting: where it runs.
    """
    if setting.parts == 1:
        return Method([])
    if config.name == "half":
        from trainer.reduction.half import half

        return half(config)
    if config.name == "powersgd":
        from trainer.reduction import powersgd

        return powersgd.make(config, shapes, setting)
    return plain()


def plain() -> Method:
    """All gradients in float32, as they are."""
    return Method([send_all, keep_all])


def send_all(values: list[Any]) -> tuple[list[Any], list[Any]]:
    """Everything is sent."""
    return [], values


def keep_all(values: list[Any]) -> tuple[list[Any], list[Any]]:
    """Everything stays."""
    return values, []
