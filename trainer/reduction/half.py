"""Half the bytes: gradients are sent in 16 bits; sums of counts and losses, and anything with one dimension, in 32.

Biases take few bytes. So do the batch means, which may also be too large for float16.

Direct connections sum in float32 and round the sum once; TensorFlow's ring rounds at each hop.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.config import Reduction
from trainer.reduction import Method

SCALE = 1024.0
"""For float16, whose smallest normal number is 6e-5: mean gradients are often smaller. A power of two loses no bits."""


def half(config: Reduction) -> Method:
    """Round gradients to `config.dtype` (`float16` or `bfloat16`) before they are sent."""
    kind = tf.as_dtype(config.dtype)
    scale = SCALE if kind == tf.float16 else 1.0

    def short(gradient: tf.Tensor) -> tf.Tensor:
        return tf.cast(gradient * scale if scale != 1 else gradient, kind)

    def wide(gradient: tf.Tensor) -> tf.Tensor:
        return tf.cast(gradient, tf.float32) / scale

    def shorten(values: list[Any]) -> tuple[list[Any], list[tf.Tensor]]:
        return [], _large(short, values)

    def widen(values: list[Any]) -> tuple[list[Any], list[tf.Tensor]]:
        return _large(wide, values), []

    return Method([shorten, widen])


def _large(change: Callable[[tf.Tensor], tf.Tensor], values: list[Any]) -> list[tf.Tensor]:
    """Change only tensors with two or more dimensions; the sums come first and have one."""
    return [value if len(value.shape) < 2 else change(value) for value in values]
