"""Code shared by the TensorFlow programs: settings, the task's model in Keras, one step per traced call or CHUNK steps."""

import json
import os
from collections.abc import Callable
from typing import Any

import common

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

VERSIONS = ("tensorflow", "tensorflow-cpu", "keras")


def tf_config(given: common.Task, alone: bool = False) -> str:
    """TF_CONFIG of this worker; with `alone`, of a cluster of one."""
    workers, index = ([given.addresses[given.rank]], 0) if alone else (given.addresses, given.rank)
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def set_threads(threads: int) -> None:
    """Set intra-op and inter-op threads; call before any op runs."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))


def build(keras: Any) -> Any:
    """The model, with the same weights on every worker."""
    layers = keras.layers
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input(common.SIZE),
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(common.CLASSES),
        ]
    )


def weights(model: Any) -> list[Any]:
    """The trained weights as arrays."""
    return [variable.numpy() for variable in model.trainable_variables]


def calls(given: common.Task, step: Callable[..., Any], loop: bool) -> Callable[[int], float]:
    """Steps by traced calls of `step(images, labels)`, which returns the loss: one per call, or CHUNK of them in a loop."""
    import tensorflow as tf

    @tf.function
    def looped(images: Any, labels: Any) -> Any:
        loss = tf.constant(0.0)
        for index in tf.range(tf.shape(labels)[0]):
            loss = step(images[index], labels[index])
        return loss

    images, labels = (tf.constant(values) for values in common.images(given.rank, given.batch))
    if loop:
        return lambda steps: float(looped(images[:steps], labels[:steps]).numpy())
    call, feeds = tf.function(step), [(images[index], labels[index]) for index in range(common.CHUNK)]

    def run(steps: int) -> float:
        losses = [call(*feed) for feed in feeds[:steps]]
        return float(losses[-1].numpy())

    return run
