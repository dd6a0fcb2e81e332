"""Batch normalisation in one op instead of Keras' twenty: a third of a small residual network's step on a CPU.

The layers stay Keras' own, so that any Keras can open a snapshot; only their computation is replaced.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def fuse(model: keras.Model) -> int:
    """Make a model's BatchNormalization of images use TensorFlow's fused op; return the number of layers.

    Layers that do more than the paper's method (Ioffe, Szegedy 2015, arXiv:1502.03167) are left unchanged.
    """
    layers = [layer for layer in model._flatten_layers() if _fits(layer)]
    for layer in layers:
        layer.call = functools.partial(_normalised, layer, layer.call)
    return len(layers)


def _fits(layer: keras.layers.Layer) -> bool:
    if type(layer) is not keras.layers.BatchNormalization or not layer.built:
        return False
    plain = layer.center and layer.scale and not (layer.renorm or layer.synchronized)
    single = "float64" not in (layer.compute_dtype, layer.variable_dtype)
    return plain and single and layer.trainable and layer.axis in (-1, 3) and layer.input_spec.ndim == 4


def _normalised(layer: Any, own: Callable[..., Any], inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
    if mask is not None:
        return own(inputs, training=training, mask=mask)
    scale, offset = tf.convert_to_tensor(layer.gamma), tf.convert_to_tensor(layer.beta)
    means = (layer.moving_mean, layer.moving_variance)
    moments = [tf.zeros([0])] * 2 if training else [tf.convert_to_tensor(variable) for variable in means]
    fused = tf.raw_ops.FusedBatchNormV3(
        x=inputs, scale=scale, offset=offset, mean=moments[0], variance=moments[1], epsilon=layer.epsilon, is_training=bool(training)
    )
    if training:
        # The op returns the unbiased estimate of the population variance; Keras keeps the batch's own variance.
        count = tf.cast(tf.size(inputs) // tf.shape(inputs)[-1], tf.float32)
        for kept, value in zip(means, (fused.batch_mean, fused.batch_variance * ((count - 1) / count)), strict=True):
            kept.assign(kept * layer.momentum + value * (1 - layer.momentum))
    return fused.y
