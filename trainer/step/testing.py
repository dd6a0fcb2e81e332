"""A step in which nothing is trained: test sums, and predictions."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.common.patching import replaced
from trainer.keras_step import keras_metrics
from trainer.keras_step.optimizer import penalties_apart
from trainer.models.compiled_model import CompiledModel


def flattened(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Tensors as vectors of float32."""
    return [tf.reshape(tf.cast(one, tf.float32), [-1]) for one in tensors]


def change_of(scope: keras.StatelessScope, variable: keras.Variable) -> tf.Tensor:
    """By how much a forward pass changed a variable; zeros if it did not."""
    value = scope.get_current_value(variable)
    return tf.zeros(variable.shape, variable.dtype) if value is None else value - variable.value


def test_sums(model: keras.Model, l2_in_loss: bool, data: tuple[Any, ...], draws: bool, logs: keras_metrics.StepLogs | None) -> tf.Tensor:
    """The sums by which a `test_step` changes the states of the model's metrics, flattened, float32; in a traced function.

    Args:
        model: compiled.
        l2_in_loss: whether penalties of weights count in the loss.
        data: a batch.
        draws: whether random generators, and what losses keep, go on, as those of LSTM's dropout do in Keras, too; else they stay.
        logs: notes what a step of the model's own returns, whose values follow the sums; None for Keras' own.
    """
    compiled = CompiledModel(model)
    states, count = compiled.metric_states, compiled.loss_count
    # Weights, too: for their regularizers.
    given = {id(variable): (variable, variable.value) for variable in [*states, *model.trainable_variables]}
    scope = keras.StatelessScope(list(given.values()), collect_losses=True)
    quiet = replaced(model, "get_metrics_result", dict) if logs is None else contextlib.nullcontext()
    with contextlib.nullcontext() if l2_in_loss else penalties_apart(model), quiet, scope:
        returned = model.test_step(data)
        tracks_loss = count is not None and scope.get_current_value(count) is not given[id(count)][1]
        values = [] if logs is None else logs.read(model, returned, tracks_loss)
    for variable in [*compiled.seeds, *compiled.kept_by_losses] if draws else ():
        if (value := scope.get_current_value(variable)) is not None:
            variable.assign(value)
    return tf.concat([tf.zeros([0]), *flattened([*(change_of(scope, variable) for variable in states), *values])], axis=0)


@contextlib.contextmanager
def predictions(model: keras.Model) -> Iterator[list[Any]]:
    """While a step of validation is traced: yields what the model gives, one nest; empty if a step of the model's own hides it."""
    predicted: list[Any] = []
    compute = model.compute_metrics

    def noting(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        predicted[:] = [y_pred]
        return compute(x, y, y_pred, sample_weight=sample_weight)

    with replaced(model, "compute_metrics", noting):
        yield predicted


def make_classify_call(model: keras.Model) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """A function of `(images, labels)` without collectives: logits `[batch, classes]`, losses `[batch]`."""
    specification = [tf.TensorSpec([None, *model.input_shape[1:]], tf.uint8), tf.TensorSpec([None], tf.int32)]

    @tf.function(input_signature=specification, autograph=False)
    def call(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = tf.cast(model(images, training=False), tf.float32)
        return logits, tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    return call
