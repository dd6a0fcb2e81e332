"""One float32 all-reduce a step: all gradients and sums laid end to end.

On ordinary Ethernet each all-reduce has a fixed cost of several round trips, so one large tensor
beats many small ones (tensor fusion: Sergeev, Del Balso 2018, arXiv:1802.05799).
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

Tensors = list[tf.Tensor]


def packed(shapes: Sequence[tf.TensorShape]) -> list[Callable[[Tensors], tuple[Tensors, Tensors]]]:
    """Lay all tensors end to end and send them, then cut their sum apart into these shapes again."""

    def pack(values: Tensors) -> tuple[Tensors, Tensors]:
        return [], [tf.concat([tf.reshape(tensor, [-1]) for tensor in values], axis=0)]

    def unpack(values: Tensors) -> tuple[Tensors, Tensors]:
        parts = tf.split(values[0], [shape.num_elements() for shape in shapes])
        return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)], []

    return [pack, unpack]
