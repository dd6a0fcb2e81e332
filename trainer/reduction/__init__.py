"""How gradients are summed over the workers: one module a method, one interface.

What travels is a list of tensors. It begins as `[sums, *gradients]` of one worker: a short vector of
local sums (`[loss, images, correct, stop]`, float32) and the gradients of the SUM of the local
losses. It ends as the same list summed over all workers. In between a method computes and sends in
turn, as often as it needs to: packed once, PowerSGD (Vogels et al. 2019, arXiv:1905.13727) twice.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trainer.config import Reduction
from trainer.reduction.packed import packed

if TYPE_CHECKING:
    import tensorflow as tf

Compute = Callable[["list[tf.Tensor]"], "tuple[list[tf.Tensor], list[tf.Tensor]]"]
"""Gives from the tensors at hand those that stay and those that are sent.

What is sent is summed over all workers, and `[*stayed, *summed]` are the tensors at hand of the next
computation. The last sends nothing. Called in replica context.
"""

_REDUCTIONS = {"packed": packed}


def make(config: Reduction, workers: int, shapes: "Sequence[tf.TensorShape]") -> list[Compute]:
    """The computations of the reduction that a configuration names; none for one worker, who has nobody to share with.

    Args:
        config: the section `reduction`.
        workers: how many sum.
        shapes: of `[sums, *gradients]`.
    """
    return _REDUCTIONS[config.name](shapes) if workers > 1 else []


def all_reduce(tensors: "Sequence[tf.Tensor]", options: Any) -> "list[tf.Tensor]":
    """Sums over all workers, one collective a tensor; in replica context."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    # The identity places a traced function's argument on this worker's device, which the collective asks of its input.
    return [context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(tensor), options=options) for tensor in tensors]
