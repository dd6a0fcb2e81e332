"""Batch normalisation in one op."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.models.fuse_layers import fuse


def test_a_mask_is_keras_own():
    """Positions that are left out count in no statistics; TensorFlow's op knows no mask."""
    x, mask = np.random.default_rng(0).normal(size=(3, 2, 2, 4)).astype("float32"), np.ones((3, 2, 2), bool)
    mask[0] = False
    model = keras.Sequential([keras.Input((2, 2, 4)), keras.layers.BatchNormalization()])
    layer = model.layers[0]
    expected, whole = layer(x, training=True, mask=mask).numpy(), layer(x, training=True).numpy()
    assert fuse(model) == 1
    np.testing.assert_array_equal(layer(x, training=True, mask=mask).numpy(), expected)
    np.testing.assert_allclose(layer(x, training=True).numpy(), whole, atol=1e-5)
    assert abs(expected - whole).max() > 0.01


@pytest.fixture
def normalised():
    """What a layer of batch normalisation gives and keeps, by Keras or fused, and how many were fused."""
    inputs = tf.constant(np.random.default_rng(1).normal(3.0, 2.0, (5, 4, 4, 2)).astype("float32"))

    def train(policy, fused):
        keras.config.set_dtype_policy(policy)
        model = keras.Sequential([keras.Input((4, 4, 2)), keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)])
        count = fuse(model) if fused else 0
        outputs = [model(inputs, training=True), model(inputs, training=False), *(weight.value for weight in model.weights)]
        return count, outputs[0].dtype, [tf.cast(one, tf.float32).numpy() for one in outputs]

    yield train
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize(("policy", "near"), [("float32", 1e-5), ("mixed_bfloat16", 0.05)])
def test_the_fused_layer_gives_what_keras_gives(policy, near, normalised):
    (count, kind, ours), (_, keras_kind, theirs) = normalised(policy, True), normalised(policy, False)
    assert (count, kind) == (1, keras_kind)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=near)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"scale": False}, (4, 4, 2)),
        ({"renorm": True}, (4, 4, 2)),
        ({"synchronized": True}, (4, 4, 2)),
        ({"axis": 1}, (4, 4, 2)),
        ({}, (7,)),
    ],
)
def test_layers_that_do_more_are_left_to_keras(options, shape):
    assert fuse(keras.Sequential([keras.Input(shape), keras.layers.BatchNormalization(**options)])) == 0
