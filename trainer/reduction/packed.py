"""One float32 all-reduce a step: all gradients and sums laid end to end.

On ordinary Ethernet each all-reduce has a fixed cost of several round trips, so one large tensor
beats many small ones (tensor fusion: Sergeev, Del Balso 2018, arXiv:1802.05799).
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def packed(workers: int, options: Any) -> Callable[[Sequence[tf.Tensor], tf.Tensor], tuple[list[tf.Tensor], tf.Tensor]]:
    """A reduction that sends everything in one tensor; with one worker nothing is sent."""

    def reduce(gradients: Sequence[tf.Tensor], sums: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        if workers == 1:
            return list(gradients), sums
        pack = tf.concat([tf.reshape(tensor, [-1]) for tensor in (sums, *gradients)], axis=0)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, pack, options=options)
        sizes = [tensor.shape.num_elements() for tensor in (sums, *gradients)]
        first, *rest = tf.split(total, sizes)
        return [tf.reshape(flat, tensor.shape) for flat, tensor in zip(rest, gradients, strict=True)], first

    return reduce
