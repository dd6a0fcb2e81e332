"""Numbers that are none: a run ends with the step and the learning rate, and saves nothing of it."""

import re

import pytest

from tests.project import EXHAUSTIVE

RATE = "set=train.global_batch=20,data.image_size=[16,16,3],optimizer.learning_rate=1e30"


def test_a_loss_of_nan_ends_the_run(trainings, pictures):
    log = trainings.train("run=diverging", f"dataset={pictures}", "config=task_cnn", "epochs=3", RATE, codes=(3, 3))
    assert re.search(r"the loss became (nan|inf) .*with learning rate 1e\+30", log), log
    for folder in ("state", "checkpoints"):
        assert not list((trainings.run("diverging") / folder).glob("*"))


@EXHAUSTIVE
def test_the_last_weights_are_checked_before_saving(project, pictures):
    given = (f"dataset={pictures}", "config=task_cnn", f"{RATE},train.steps=1")
    done = project.play("train", "run=ruined", *given, check=False)
    assert done.returncode != 0
    assert "the validation loss became nan after step 1 with learning rate 1e+30" in done.stdout
    assert project.summary("ruined")["state"] == "FAILED"
    for folder in ("state", "checkpoints"):
        assert not list((project.run("ruined") / folder).glob("*"))


WEIGHTS = """import keras
import tensorflow as tf


@tf.custom_gradient
def unseen(x, place):
    return tf.identity(x), lambda upstream: (upstream, tf.constant(float("-inf")))


@keras.saving.register_keras_serializable()
class Steep(keras.layers.Layer):
    def build(self, shape):
        self.place = self.add_weight(shape=(), initializer="zeros")

    def call(self, x):
        return unseen(x, tf.convert_to_tensor(self.place))


@keras.saving.register_keras_serializable()
class Masked(keras.layers.Layer):
    def build(self, shape):
        self.mask = self.add_weight(shape=shape[1:], initializer=keras.initializers.Constant(float("-inf")), trainable=False)

    def call(self, x):
        return tf.maximum(x, self.mask)


def build(size, classes, steep=True):
    last = Steep() if steep else Masked()
    return keras.Sequential([keras.Input(size), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(classes), last])
"""


@EXHAUSTIVE
@pytest.mark.parametrize("steep", [True, False])
def test_a_weight_that_became_infinite_ends_the_run(steep, project, pictures):
    """Unseen by the loss; one that always was infinite does not."""
    (project.root / "weights.py").write_text(WEIGHTS)
    run, more = f"weights-{steep}".lower(), f"set=train.global_batch=20,train.steps=1,data.image_size=[8,8,3],model.steep={steep}".lower()
    done = project.play("train", f"run={run}", "model=weights.py:build", f"dataset={pictures}", more, check=not steep)
    assert (done.returncode == 0) != steep
    kept = [path.name for folder in ("state", "checkpoints") for path in (project.run(run) / folder).glob("*")]
    if steep:
        assert "a weight became inf after step 1 with learning rate 0.001" in done.stdout
        assert kept == []
    else:
        assert kept == ["step-000000001.npz", "epoch-0001.keras"]
