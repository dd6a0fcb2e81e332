"""`lockstep.distribute`: what is left as it was."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from trainer.keras_fit.distribute import distribute


def build():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def test_a_batch_of_ones_own_is_not_exchanged():
    """With the model's own step, traced once; the distributed one is in its place again."""
    x, y = np.arange(30.0).reshape(10, 3) / 30, np.ones((10, 1))
    plain, member = build(), SimpleNamespace(rank=0, workers=2)
    model = distribute(build(), SimpleNamespace(member=member, group=None, digests=lambda digest: [digest] * 2))
    steps = model.train_step, model.test_step
    for _ in range(2):
        assert model.train_on_batch(x, y) == pytest.approx(plain.train_on_batch(x, y), rel=1e-6)
        assert model.test_on_batch(x, y) == pytest.approx(plain.test_on_batch(x, y), rel=1e-6)
    np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], rtol=1e-6)
    assert (model.train_step, model.test_step) == steps
    assert (model.train_function, model.test_function) == (None, None)
