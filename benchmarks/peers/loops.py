"""How the TensorFlow systems run their steps: one step per traced call, or CHUNK steps."""

from collections.abc import Callable
from typing import Any

import common


def one_a_call(given: common.Task, step: Callable[..., Any]) -> Callable[[int], float]:
    """One traced call of `step(images, labels)`, which returns the loss, per step."""
    import tensorflow as tf

    call = tf.function(step)
    images, labels = common.images(given.rank, given.batch)
    feeds = [(tf.constant(images[index]), tf.constant(labels[index])) for index in range(common.CHUNK)]

    def run(steps: int) -> float:
        loss = None
        for index in range(steps):
            loss = call(*feeds[index])
        return float(loss.numpy())

    return run


def several_a_call(given: common.Task, step: Callable[..., Any]) -> Callable[[int], float]:
    """CHUNK steps per traced call."""
    import tensorflow as tf

    @tf.function
    def call(images: Any, labels: Any) -> Any:
        loss = tf.constant(0.0)
        for index in tf.range(tf.shape(labels)[0]):
            loss = step(images[index], labels[index])
        return loss

    images, labels = (tf.constant(values) for values in common.images(given.rank, given.batch))

    def run(steps: int) -> float:
        return float(call(images[:steps], labels[:steps]).numpy())

    return run
