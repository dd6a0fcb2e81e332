"""Metrics of models whose `train_step` is their own, summed over steps."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.data.spec import Leaf, Spec
from trainer.keras_step import additive, keras_metrics, whole_batch
from trainer.network.all_reduce import Alone
from trainer.step import batch_arrays, worker_step
from trainer.step.program import Program
from trainer.step.step_sums import StepSums

SPEC = Spec([0], (Leaf("x", "float32", (2,)),))
CLUSTER = SimpleNamespace(group=Alone(), run=lambda function, given: function(*given), local=lambda result: result)


class Own(keras.Model):
    """Its loss is the mean of its outputs; `logs` makes what its step returns."""

    def __init__(self, logs, tracks=False):
        super().__init__()
        self.dense, self.logs, self.tracks = keras.layers.Dense(1), logs, tracks

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        (x,) = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        if self.tracks:
            self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        return self.logs(self, loss)


def results(logs, **options):
    """By name, over two steps of three rows."""
    keras.utils.set_random_seed(1)
    model = Own(logs, **options)
    model.compile(keras.optimizers.SGD(0.0), jit_compile=False)
    worker_step.build(model, SPEC)
    local = worker_step.Local(CLUSTER, model, SPEC, placements=SimpleNamespace(layout=whole_batch.Layout()))
    program = Program(local, additive.Additive(model, model.train_step, whole_batch.Layout()), adds_up=False)
    call = worker_step.make_train_call(program)
    table = call(batch_arrays.full((np.ones((2, 3, 2), np.float32),)), np.zeros(2, np.float32)).numpy()
    expected = float(model(np.ones((1, 2), np.float32))[0, 0])
    made = keras_metrics.Results(model, program.logs)
    return made(made.summed([], StepSums(table).metrics)), expected


def test_untouched_loss_tracker_means_no_loss():
    """A step that leaves keras tracker of the loss alone has no loss."""
    metrics, expected = results(lambda model, loss: {"generator": loss})
    assert metrics == {"generator": pytest.approx(expected, rel=1e-6)}


@pytest.mark.parametrize("tracks", [False, True])
def test_returned_loss_is_the_steps_loss(tracks):
    """A loss that a step returns is its loss whether or not it is tracked."""
    metrics, expected = results(lambda model, loss: {"loss": loss}, tracks=tracks)
    assert metrics == {"loss": pytest.approx(expected, rel=1e-6)}


def test_only_what_a_step_returns_shows():
    """A tracked loss, too, as in `fit`."""
    metrics, expected = results(lambda model, loss: {"other": 2 * loss}, tracks=True)
    assert metrics == {"other": pytest.approx(2 * expected, rel=1e-6)}
