"""Steps without training: test sums and predictions."""

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
    """Change of a variable by a forward pass; zeros if it is unchanged."""
    value = scope.get_current_value(variable)
    return tf.zeros(variable.shape, variable.dtype) if value is None else value - variable.value


def test_sums(model: keras.Model, l2_in_loss: bool, data: tuple[Any, ...], draws: bool, logs: keras_metrics.StepLogs | None) -> tf.Tensor:
    """Changes of the states of the model's metrics by a `test_step`, flattened, float32; for a traced function.

    Args:
        model: compiled.
        l2_in_loss: whether penalties of weights count in the loss.
        data: a batch.
        draws: whether random generators and states of losses advance, as LSTM's dropout does in Keras, too; otherwise they stay.
        logs: notes the logs of the model's own step, whose values follow the sums; None for Keras' own step.
    """
    compiled = CompiledModel(model)
    states, count = compiled.metric_states, compiled.loss_count
    # Weights are included for their regularizers.
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
    """Capture the model's outputs while a validation step is traced: yields one nest; nothing if the model's own step hides them."""
    predicted: list[Any] = []
    compute = model.compute_metrics

    def noting(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        predicted[:] = [y_pred]
        return compute(x, y, y_pred, sample_weight=sample_weight)

    with replaced(model, "compute_metrics", noting):
        yield predicted


def make_classify_call(model: keras.Model) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Make a function of `(images, labels)` without collectives that returns logits `[batch, classes]` and losses `[batch]`."""
    specification = [tf.TensorSpec([None, *model.input_shape[1:]], tf.uint8), tf.TensorSpec([None], tf.int32)]

    @tf.function(input_signature=specification, autograph=False)
    def call(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = tf.cast(model(images, training=False), tf.float32)
        return logits, tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    return call
