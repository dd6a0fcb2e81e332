"""What an engine does with steps that can't take what it tries, without a cluster."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import step
from trainer.data.spec import Leaf, Spec
from trainer.engine import Engine


class Autoencoder(keras.Model):
    """Applies its loss to x, whose shape is not that of y."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(5)

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=data[0], y_pred=self(data[0]))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True))
        return {"loss": loss}


SPEC = Spec((0, 1), (Leaf("x", "float32", (5,)), Leaf("y", "float32", (3,))))


def test_own_step_may_leave_y_alone():
    """Its optimizer's variables are made when it trains."""
    model = Autoencoder()
    model.build((None, 5))
    model.compile("adam", "mse", jit_compile=False)
    step.build(model, SPEC)
    assert not model.optimizer.built
    assert float(model.train_step((np.ones((4, 5), "float32"), np.ones((4, 3), "float32")))["loss"]) > 0


def test_loss_that_misfits_y_is_refused():
    """Where the step is Keras' own, which applies it to y."""
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4)])
    model.compile("adam", "mse", jit_compile=False)
    with pytest.raises(ValueError, match=r"[Dd]imensions|shape"):
        step.build(model, SPEC)


def test_step_that_needs_more_rows_is_tried_once():
    """As one that splits a batch into halves."""
    engine, calls = Engine.__new__(Engine), []
    engine.undone = lambda: contextlib.nullcontext((None, None))

    def call(*_given):
        calls.append(1)
        raise tf.errors.InvalidArgumentError(None, None, "split_dim 0 (size = 1)")

    engine._try(call)
    engine._try(call)
    assert calls == [1]
