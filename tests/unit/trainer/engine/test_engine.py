"""What an engine does with steps that can't take what it tries, without a cluster."""

import contextlib
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.common.errors import ConfigError
from trainer.data.spec import Leaf, Spec
from trainer.engine.base import Engine
from trainer.step import worker_step
from trainer.worker import choose_engine


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
    worker_step.build(model, SPEC)
    assert not model.optimizer.built
    assert float(model.train_step((np.ones((4, 5), "float32"), np.ones((4, 3), "float32")))["loss"]) > 0


def test_loss_that_misfits_y_is_refused():
    """Where the step is Keras' own, which applies it to y."""
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4)])
    model.compile("adam", "mse", jit_compile=False)
    with pytest.raises(ValueError, match=r"[Dd]imensions|shape"):
        worker_step.build(model, SPEC)


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


def test_unknown_variables_come_as_the_step_uses_them():
    """On every worker, and in every process that goes on: TensorFlow's own list has another order in each."""
    unknown = [tf.Variable(0.0, trainable=False) for _ in range(8)]
    engine = Engine.__new__(Engine)
    engine.model, engine.steps, engine.memory = keras.Sequential(), SimpleNamespace(variables=unknown[:1]), unknown[1:2]
    engine._train_call = tf.function(lambda: tf.add_n([one.read_value() for one in reversed(unknown)]))
    assert [id(one) for one in engine._unknown()] == [id(one) for one in reversed(unknown[2:])]


class Most(keras.metrics.Metric):
    """The largest y above 50, of which made-up rows have none: no sum."""

    def __init__(self, name="most"):
        super().__init__(name=name)
        self.most = self.add_variable((), initializer="zeros", name="value")

    def update_state(self, y, output, sample_weight=None):
        self.most.assign(keras.ops.maximum(self.most, keras.ops.max(keras.ops.where(y > 50, y, 0 * y))))

    def result(self):
        return self.most


def checked(*metrics):
    """Check the metrics of a model by rows whose y are about 60."""
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile("adam", "mse", metrics=list(metrics), jit_compile=False)
    worker_step.build(model, SPEC)
    local = SimpleNamespace(model=model, placements=SimpleNamespace(own_code=list))
    job = SimpleNamespace(config=SimpleNamespace(model={"file": "mine.py", "function": "build"}))
    choose_engine._check_metrics(job, local, lambda: (np.ones((6, 5), "float32"), np.arange(60, 78, dtype="float32").reshape(6, 3)))


def test_metric_without_sums_of_rows_is_refused():
    """Before the first step, though it does of made-up ones."""
    with pytest.raises(ConfigError, match=r"model=mine.py:build: the metric most keeps no sums: .* Fix: keep sums and counts"):
        checked(Most())


def test_metrics_of_keras_are_not_tried_again():
    """They are known."""
    checked("mae", keras.metrics.R2Score())
