"""Keras' losses, divided by what they are a mean over on all workers together, so that the workers' losses add up to the global one.

Inside, each worker's loss is its part of the loss of the whole batch: the sum of a loss's values over all of the batch's values, or, where
a mask or weights say what counts, over what counts on all workers.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from keras.src.losses import loss as keras_loss

from trainer.collective import AllReduce
from trainer.replacing import replaced

MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def overridden(model: keras.Model) -> list[str]:
    """Methods that a model has instead of Keras' own; with any of them, what its loss is a mean over is not known."""
    return [name for name in ("train_step", "compute_loss") if getattr(type(model), name) is not getattr(keras.Model, name)]


@contextlib.contextmanager
def over_all_workers(model: keras.Model, share: tf.Tensor, all_reduce: AllReduce) -> Iterator[None]:
    """While a step is traced: losses are parts of the global loss, regularizers count with `share`, and trackers see whole losses.

    Args:
        model: compiled, with nothing `overridden`.
        share: scalar, this worker's rows divided by those of the whole batch.
        all_reduce: sums tensors over all workers.
    """
    reduce, additional = keras_loss.reduce_weighted_values, model._aggregate_additional_loss

    def part(values: Any, sample_weight: Any = None, mask: Any = None, reduction: str = MEANS[0], dtype: Any = None) -> Any:
        return _part(share, all_reduce, reduce, values, sample_weight, mask, reduction, dtype)

    def whole(loss: Any) -> Any:
        return tf.math.divide_no_nan(loss, tf.cast(share, loss.dtype))

    with contextlib.ExitStack() as patched:
        patched.enter_context(replaced(keras_loss, "reduce_weighted_values", part))
        # Keras' own scaling, by the number of a strategy's replicas, takes equal parts for granted.
        patched.enter_context(replaced(keras_loss, "scale_loss_for_distribution", lambda loss: loss))
        patched.enter_context(replaced(keras_loss, "unscale_loss_for_distribution", whole))
        patched.enter_context(replaced(model, "_aggregate_additional_loss", lambda loss: additional(loss) * ops.cast(share, loss.dtype)))
        for tracker in model._compile_loss.metrics if model._compile_loss is not None else ():
            patched.enter_context(replaced(tracker, "update_state", _sharing(tracker.update_state, share)))
        yield


def _sharing(update: Callable[..., Any], share: tf.Tensor) -> Callable[..., Any]:
    """Keras gives the loss of each output no weight where it does not know the size of a batch: then all workers' weights are 1 in sum."""

    def shared(value: Any, sample_weight: Any = None) -> Any:
        return update(value, sample_weight=share if sample_weight is None else sample_weight)

    return shared


def _part(
    share: tf.Tensor,
    all_reduce: AllReduce,
    reduce: Callable[..., Any],
    values: Any,
    sample_weight: Any,
    mask: Any,
    reduction: str,
    dtype: Any,
) -> Any:
    """This worker's part of a loss; arguments from `values` on as in Keras' `reduce_weighted_values`."""
    counts = mask is not None or (reduction == "mean_with_sample_weight" and sample_weight is not None)
    if reduction not in MEANS or not counts:
        local = reduce(values, sample_weight, mask, reduction, dtype)
        here = tf.cast(share, local.dtype)
        # A sum is a part already, but for a placeholder's.
        return local * (tf.sign(here) if reduction == "sum" and len(values.shape) else here)
    numerator = reduce(values, sample_weight, mask, "sum", dtype)
    kind = numerator.dtype
    if reduction == "mean_with_sample_weight":
        weights = keras_loss.apply_mask(sample_weight, mask, dtype=kind, reduction=reduction)
        denominator = ops.sum(ops.cast(weights, kind))
    else:
        # As in Keras, whose mask may have other dimensions than the values.
        valid, masked = ops.sum(ops.cast(mask, kind)), ops.cast(ops.size(mask), kind)
        denominator = ops.divide_no_nan(valid * ops.cast(ops.size(ops.convert_to_tensor(values)), kind), masked)
    here = tf.sign(tf.cast(share, kind))
    (everywhere,) = all_reduce([tf.reshape(denominator * here, [1])])
    return ops.divide_no_nan(numerator * here, everywhere[0])
