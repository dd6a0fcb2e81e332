"""Stock TensorFlow: MultiWorkerMirroredStrategy and a Keras optimizer, as in TensorFlow's documentation.

Variant `loop`: CHUNK steps per traced call, which the documentation recommends for speed.
"""

import os
from typing import Any

import common
import tensorflow_model


def main() -> None:
    """Train and time."""
    given = common.Task.parse()
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
        model = tensorflow_model.build(keras)
        optimizer = keras.optimizers.SGD(common.LEARNING_RATE, momentum=common.MOMENTUM)
        optimizer.build(model.trainable_variables)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            loss = tf.reduce_sum(losses) / (given.batch * given.workers)
        variables = model.trainable_variables
        # It does its own all-reduce.
        optimizer.apply(tape.gradient(loss, [variable.value for variable in variables]), variables)
        return loss * given.workers

    def on_all(images: Any, labels: Any) -> Any:
        return strategy.run(step, args=(images, labels))

    run = tensorflow_model.calls(given, on_all, given.variant == "loop")
    return common.Trained(run, lambda: tensorflow_model.weights(model), common.versions(*tensorflow_model.VERSIONS))


if __name__ == "__main__":
    main()
