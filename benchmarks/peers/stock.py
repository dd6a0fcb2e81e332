"""Stock TensorFlow: MultiWorkerMirroredStrategy and a Keras optimizer, as TensorFlow's documentation teaches it.

Variant `loop`: CHUNK steps in one traced call, which the documentation names as a way to train faster.
"""

import os
from collections.abc import Callable
from typing import Any

import common
import tensorflow_model


def main() -> None:
    """Train and time."""
    given = common.task()
    meeting = common.Meeting(given)
    os.environ["TF_CONFIG"] = tensorflow_model.tf_config(given)
    tensorflow_model.set_threads(given.threads)
    common.measure(given, meeting, trained(given))


def trained(given: common.Task) -> common.Trained:
    """The custom training loop of TensorFlow's guide."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tensorflow_model.build()
        optimizer = keras.optimizers.SGD(common.LEARNING_RATE, momentum=common.MOMENTUM)
        optimizer.build(model.trainable_variables)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            loss = tf.reduce_sum(losses) / (given.batch * given.workers)
        variables = model.trainable_variables
        # Makes its own all-reduce.
        optimizer.apply(tape.gradient(loss, [variable.value for variable in variables]), variables)
        return loss * given.workers

    run = {"": one_a_call, "loop": several_a_call}[given.variant](given, strategy, step)
    return common.Trained(run, lambda: tensorflow_model.weights(model), common.versions(*tensorflow_model.VERSIONS))


def one_a_call(given: common.Task, strategy: Any, step: Callable[..., Any]) -> Callable[[int], float]:
    """A traced call a step."""
    import tensorflow as tf

    call = tf.function(lambda images, labels: strategy.run(step, args=(images, labels)))
    images, labels = common.images(given.rank, given.batch)
    feeds = [(tf.constant(images[index]), tf.constant(labels[index])) for index in range(common.CHUNK)]

    def run(steps: int) -> float:
        loss = None
        for index in range(steps):
            loss = call(*feeds[index])
        return float(loss.numpy())

    return run


def several_a_call(given: common.Task, strategy: Any, step: Callable[..., Any]) -> Callable[[int], float]:
    """CHUNK steps a traced call."""
    import tensorflow as tf

    @tf.function
    def call(images: Any, labels: Any) -> Any:
        loss = tf.constant(0.0)
        for index in tf.range(tf.shape(labels)[0]):
            loss = strategy.run(step, args=(images[index], labels[index]))
        return loss

    images, labels = (tf.constant(values) for values in common.images(given.rank, given.batch))

    def run(steps: int) -> float:
        return float(call(images[:steps], labels[:steps]).numpy())

    return run


if __name__ == "__main__":
    main()
