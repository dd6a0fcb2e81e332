"""The inner loop: one traced call runs several synchronous steps and returns to Python once.

Loss is the SUM over local images; gradients, loss and counts are summed over the workers in one
reduction and divided by the global count, so uneven local batches are weighted exactly.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from trainer.cluster import Cluster
from trainer.optimizer import SGD

SUMS = ("loss", "images", "correct", "stop")
"""What each row of a call's result sums over all workers, float32."""


def make_train_call(
    cluster: Cluster, model: keras.Model, optimizer: SGD, reduce: Callable[..., tuple[list[tf.Tensor], tf.Tensor]]
) -> Callable[..., tf.Tensor]:
    """A function of one call's batches that trains on them.

    Its arguments: images `[steps, batch, height, width, channels]` uint8; labels
    `[steps, batch]` int32; weights `[steps, batch]` float32 (0 leaves an image out); rates
    `[steps]` float32; stop, a float32 scalar that is 1 where this worker asks all to stop.
    Its result: `[steps, 4]` float32, the columns of `SUMS`.
    """
    weights_of = [variable.value for variable in model.trainable_variables]

    def step(images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, rate: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights_of)
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits) * weights
            count = tf.reduce_sum(weights)
            total = tf.reduce_sum(losses)
            objective = total + count * tf.add_n(model.losses) if model.losses else total
        gradients = tape.gradient(objective, weights_of)
        sums = tf.stack([total, count, _correct(logits, labels, weights), stop])
        gradients, sums = reduce(gradients, sums)
        optimizer.apply(gradients, sums[1], rate)
        return sums

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, *model.input_shape[1:]], tf.uint8),
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None, None], tf.float32),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([], tf.float32),
        ]
    )
    def call(images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, rates: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        steps = tf.shape(images)[0]
        rows = tf.TensorArray(tf.float32, size=steps, element_shape=[len(SUMS)])
        for index in tf.range(steps):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            sums = cluster.strategy.run(step, args=(images[index], labels[index], weights[index], rates[index], stop))
            rows = rows.write(index, sums)
        return rows.stack()

    return call


def make_evaluate_call(model: keras.Model) -> Callable[..., tf.Tensor]:
    """A function of `(images, labels)` without collectives that gives `[loss sum, images, correct]` float32."""

    @tf.function(input_signature=[tf.TensorSpec([None, *model.input_shape[1:]], tf.uint8), tf.TensorSpec([None], tf.int32)])
    def call(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = tf.cast(model(images, training=False), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        ones = tf.ones_like(losses)
        return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(ones), _correct(logits, labels, ones)])

    return call


def make_logits_call(model: keras.Model) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """A function of `(images, labels)` that gives logits `[batch, classes]` and each image's loss `[batch]`."""

    @tf.function(input_signature=[tf.TensorSpec([None, *model.input_shape[1:]], tf.uint8), tf.TensorSpec([None], tf.int32)])
    def call(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = tf.cast(model(images, training=False), tf.float32)
        return logits, tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    return call


def _correct(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    hits = tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels)
    return tf.reduce_sum(tf.cast(hits, tf.float32) * weights)
