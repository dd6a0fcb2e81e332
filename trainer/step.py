"""The inner loop: one traced call runs several synchronous steps and returns to Python once.

Each worker's gradient is that of its local losses' sum, divided by the number of images of all workers:
summed over the workers it is the mean over all images, and uneven local batches are weighted exactly.

Now and then a step is taken apart: the same parts, each traced and called on its own, tell how long
each takes. It is a step of training like any other.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.cluster import Cluster
from trainer.optimizer import SGD
from trainer.reduction.chain import Chain
from trainer.stopwatch import Stopwatch

SUMS = ("loss", "images", "correct", "stop")
"""What each row of a call's result sums over all workers, float32."""


@dataclass(frozen=True)
class Parts:
    """What a step is made of; each function is called in replica context.

    What travels is `[sums, *gradients]`, as in `trainer.reduction`.
    """

    cluster: Cluster
    model: keras.Model
    optimizer: SGD
    reduction: Chain

    def apply(self, values: list[Any], rate: tf.Tensor) -> tf.Tensor:
        """Update the weights; gives the global sums."""
        sums, *gradients = values
        self.optimizer.apply(gradients, rate)
        return sums


def forward_backward(
    model: keras.Model, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, total: tf.Tensor, stop: tf.Tensor
) -> list[tf.Tensor]:
    """Local sums, and the gradients of this worker's part of the mean loss over `total` images of all workers."""
    weights_of = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights_of)
        logits = tf.cast(model(images, training=True), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits) * weights
        count = tf.reduce_sum(weights)
        loss = tf.reduce_sum(losses)
        objective = (loss + count * tf.add_n(model.losses) if model.losses else loss) / total
    gradients = tape.gradient(objective, weights_of)
    return [tf.stack([loss, count, _correct(logits, labels, weights), stop]), *gradients]


def on_device(
    cluster: Cluster, model: keras.Model, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, total: tf.Tensor, stop: tf.Tensor
) -> list[tf.Tensor]:
    """`forward_backward` of this device's part of the worker's batch."""
    if cluster.devices == 1:
        return forward_backward(model, images, labels, weights, total, stop)
    count, device = tf.shape(images)[0], cluster.device()
    first, last = count * device // cluster.devices, count * (device + 1) // cluster.devices
    # Of fewer images than devices one without any takes a stand-in that does not count.
    start = tf.minimum(first, count - 1)
    mine = slice(start, tf.maximum(last, start + 1))
    counts = tf.cast(last > first, tf.float32)
    return forward_backward(model, images[mine], labels[mine], weights[mine] * counts, total, stop)


def make_forward_backward_call(cluster: Cluster, model: keras.Model, take: Callable[[list[Any]], list[Any]] = list) -> Callable[..., Any]:
    """`forward_backward` on its own, called from Python with one batch of any size.

    Args:
        cluster: that trains.
        model: the worker's.
        take: makes of the result what a reduction takes.
    """

    def local(*batch: tf.Tensor) -> list[Any]:
        return take(on_device(cluster, model, *batch))

    batch = [
        tf.TensorSpec([None, *model.input_shape[1:]], tf.uint8),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None], tf.float32),
        tf.TensorSpec([], tf.float32),
        tf.TensorSpec([], tf.float32),
    ]
    return _traced(cluster, local, batch)


def blank(image: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels, weights and totals for a step of one image, which is blank."""
    one = np.ones(1, np.float32)
    return np.zeros((1, 1, *image), np.uint8), np.zeros((1, 1), np.int32), one[np.newaxis], one


def shapes(model: keras.Model) -> list[tuple[int, ...]]:
    """Shapes of the gradients."""
    return [tuple(variable.shape) for variable in model.trainable_variables]


def make_train_call(parts: Parts) -> Callable[..., tf.Tensor]:
    """A function of one call's batches that trains on them.

    Its arguments: images `[steps, batch, height, width, channels]` uint8; labels
    `[steps, batch]` int32; weights `[steps, batch]` float32 (0 leaves an image out); totals
    `[steps]` float32, the images of all workers; rates `[steps]` float32; stop, a float32
    scalar that is 1 where this worker asks all to stop.
    Its result: `[steps, 4]` float32, the columns of `SUMS`.
    """

    def step(rate: tf.Tensor, *batch: tf.Tensor) -> tf.Tensor:
        values = parts.reduction.take(on_device(parts.cluster, parts.model, *batch))
        return parts.apply(parts.reduction(values), rate)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, *parts.model.input_shape[1:]], tf.uint8),
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None, None], tf.float32),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([], tf.float32),
        ]
    )
    def call(images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, totals: tf.Tensor, rates: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        steps = tf.shape(images)[0]
        rows = tf.TensorArray(tf.float32, size=steps, element_shape=[len(SUMS)])
        for index in tf.range(steps):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            batch = rates[index], images[index], labels[index], weights[index], totals[index], stop
            rows = rows.write(index, parts.cluster.local(parts.cluster.strategy.run(step, args=batch)))
        return rows.stack()

    return call


class SplitCall:
    """A call of one step whose parts run one after the other, each with its result awaited.

    Takes the arguments of `make_train_call` with `steps` = 1; all workers call it at the same step. The weights
    come out bit for bit as they would in `make_train_call`. Parts are timed from Python because TensorFlow's own
    clock (`tf.timestamp`) refuses to run among deterministic ops.
    """

    def __init__(self, parts: Parts, forward_backward_call: Callable[..., Any]):
        """Take steps apart whose first part is a `make_forward_backward_call`, or one made for the reduction."""
        if parts.reduction.factored:
            forward_backward_call = make_forward_backward_call(parts.cluster, parts.model, parts.reduction.take)
        self._forward_backward, self._local = forward_backward_call, parts.cluster.local
        self._reduction = parts.reduction.apart(functools.partial(_traced, parts.cluster))
        self._apply = _traced(parts.cluster, parts.apply)
        self._traced = False

    def __call__(
        self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, totals: np.ndarray, rates: np.ndarray, stop: np.float32
    ) -> tuple[np.ndarray, dict[str, float] | None]:
        """Train on one step's batch.

        Returns:
            The rows `[1, 4]` of `make_train_call`, and seconds by `forward_backward`, `compression`,
            `all_reduce` (with the wait for the slowest worker) and `apply`; None in place of the seconds
            at the first call, which traces.
        """
        watch = Stopwatch()
        values = watch.time("forward_backward", self._forward_backward, images[0], labels[0], weights[0], totals[0], stop)
        values = self._reduction(values, watch)
        sums = watch.time("apply", self._apply, values, rates[0])
        seconds, self._traced = watch.seconds if self._traced else None, True
        return self._local(sums).numpy()[np.newaxis], seconds


def _traced(cluster: Cluster, part: Callable[..., Any], signature: list[tf.TensorSpec] | None = None) -> Callable[..., Any]:
    # Without the part's own name TensorFlow takes all of them for one function that it traces again and again, and warns.
    @functools.wraps(part)
    def call(*arguments: Any) -> Any:
        return cluster.strategy.run(part, args=arguments)

    return tf.function(call, input_signature=signature)


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
