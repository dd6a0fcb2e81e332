"""How gradients are summed over the workers: one module a method, one interface.

A reduction is called in replica context with the gradients of the SUM of the local losses and a
short vector of local sums (`[loss, images, correct, stop]`, float32), and gives both summed over all workers.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trainer.config import Reduction
from trainer.reduction.packed import packed

if TYPE_CHECKING:
    import tensorflow as tf

    Reduce = Callable[[Sequence[tf.Tensor], tf.Tensor], tuple[list[tf.Tensor], tf.Tensor]]

_REDUCTIONS = {"packed": packed}


def make(config: Reduction, workers: int, options: Any) -> "Reduce":
    """The reduction that a configuration names."""
    return _REDUCTIONS[config.name](workers, options)
