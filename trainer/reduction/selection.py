"""The reduction that a configuration names; `half` is here, the others are beside."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.config.schema import Reduction
from trainer.reduction import powersgd_host
from trainer.reduction.method import Method, Setting, plain

SCALE = 1024.0
"""For float16, whose smallest normal number is 6e-5: mean gradients are often smaller. A power of two loses no bits."""


def make_method(config: Reduction, shapes: Sequence[tuple[int, ...]], setting: Setting) -> Method:
    """The method that a configuration names, for gradients of these shapes; empty for a single device, which has nothing to reduce."""
    if setting.parts == 1:
        return Method([])
    if config.name == "half":
        return half(config)
    if config.name == "powersgd":
        return powersgd_host.make_method(config, shapes, setting)
    return plain()


def half(config: Reduction) -> Method:
    """Round gradients to `config.dtype` (`float16` or `bfloat16`) before they are sent."""
    kind = tf.as_dtype(config.dtype)
    scale = SCALE if kind == tf.float16 else 1.0

    def shorten(values: list[Any]) -> tuple[list[Any], list[tf.Tensor]]:
        return [], [value if len(value.shape) < 2 else tf.cast(value * scale if scale != 1 else value, kind) for value in values]

    def widen(values: list[Any]) -> tuple[list[Any], list[tf.Tensor]]:
        return [value if len(value.shape) < 2 else tf.cast(value, tf.float32) / scale for value in values], []

    return Method([shorten, widen])
