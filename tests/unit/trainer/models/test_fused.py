"""Batch normalisation in one op."""

import keras
import numpy as np

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
