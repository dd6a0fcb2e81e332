"""What made-up rows show of a model: whether its steps add up over rows, and which layers must see the whole batch."""

import pytest

from tests.unit import forked

SCRIPT = """
import json
import keras
import numpy as np
import tensorflow as tf
from keras import ops
from tests.oracle.parts import Adding, Gated, Measuring, Mixing
from trainer.network import all_reduce
from trainer.keras_step import additive, rehearsal, whole_batch

def by_pairs(y, output):
    # A value for each row, which depends on all rows.
    near = ops.matmul(output, ops.transpose(y))
    return ops.logsumexp(near, axis=-1) - ops.diagonal(near)

class BelowZero(keras.layers.Layer):
    def call(self, x):
        return x + ops.mean(ops.relu(-x), axis=0, keepdims=True)

class Filling(keras.layers.Layer):
    def call(self, x):
        there = ops.cast(~ops.isnan(x), x.dtype)
        mean = ops.sum(ops.nan_to_num(x), axis=0) / ops.maximum(ops.sum(there, axis=0), 1.0)
        return ops.where(ops.isnan(x), mean, x)

class Hardly(keras.layers.Layer):
    def call(self, x):
        return x + 1e-9 * ops.mean(x, axis=0, keepdims=True)

class Apart(keras.layers.Layer):
    def call(self, x):
        return ops.softmax(x) * ops.sum(x, axis=-1, keepdims=True)

class Around(keras.layers.Layer):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.inner = Hardly(name="hardly")

    def call(self, x):
        return self.inner(2 * x)

class Counting(keras.layers.Layer):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.seen = tf.Variable(0.0, trainable=False)

    def call(self, x):
        self.seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return x

class Two:
    member = rehearsal.Threads(2).members[0]
    def gather(self, row):
        return np.array([row, row])

def print_nothing(text):
    pass

SPECS = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 3]))

def trial(*shapes):
    return rehearsal.Trial.made_up(tuple(map(tf.TensorSpec, shapes)))

MADE_UP = trial([None, 3], [None, 3])

def adds_up(loss, *metrics):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile("sgd", loss, metrics=list(metrics))
    MADE_UP.rehearse(model.train_step, whole_batch.Layout())
    return MADE_UP.adds_up(additive.Additive(model, model.train_step, whole_batch.Layout()))

unseeded, unseeded_sees = keras.Sequential([keras.Input((3,)), Mixing(name="common"), keras.layers.Dense(3)]), whole_batch.Layout()
unseeded.compile("sgd", "mse")
MADE_UP.rehearse(unseeded.train_step, unseeded_sees)
found = {
    "unseeded": [one.name for one in unseeded_sees.seeing_all],
    "mean": adds_up("mse", keras.metrics.R2Score()),
    "pairs": adds_up(by_pairs),
    "one number": adds_up(lambda y, output: ops.mean(ops.square(y - output))),
}
model = keras.Sequential([keras.Input((3,)), Adding(name="adding"), keras.layers.Dense(1)])
try:
    with whole_batch.Step(all_reduce.Alone(), whole_batch.Layout(), 4)():
        model(tf.ones([4, 3]))
except whole_batch.SeesAll as error:
    found["adding"] = str(error)
mixing = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.MixUp(name="mixing"), keras.layers.Flatten(), keras.layers.Dense(3)])
mixing.compile("sgd", "mse")
seeing = whole_batch.Layout()
found["differing"] = trial([None, 4, 4, 3], [None, 3]).rehearse(mixing.train_step, seeing).differing
found["mixing"] = sorted(one.name for one in seeing.seeing_all)
def seeing_all(*layers):
    keras.utils.set_random_seed(1)
    model, seeing = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(3)]), whole_batch.Layout()
    model.compile("sgd", "mse")
    MADE_UP.rehearse(model.train_step, seeing)
    return [one.name for one in seeing.seeing_all]

equal = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Rescaling(0.0), keras.layers.CutMix(name="cutting"), keras.layers.Flatten()])
equal.compile("sgd", "mse")
trial([None, 4, 4, 3], [None, 48]).rehearse(equal.train_step, equal_sees := whole_batch.Layout())
found["equal rows"] = [one.name for one in equal_sees.seeing_all]
lossless = keras.Sequential([keras.Input((3,)), Adding(name="adding")])
lossless.compile("sgd")
MADE_UP.rehearse(lossless.train_step, lossless_sees := whole_batch.Layout())
found["lossless"] = [one.name for one in lossless_sees.seeing_all]
elastic, warnings = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.RandomElasticTransform(name="elastic")]), []
elastic.compile("sgd", "mse")
agreement = rehearsal.Placements(elastic, Two(), warnings.append)
IMAGES = tf.TensorSpec([None, 4, 4, 3])
agreement.adds_up(additive.Additive(elastic, elastic.train_step, agreement.layout), (IMAGES, IMAGES))
found["elastic"] = warnings
found["bytes"] = seeing_all(keras.layers.Rescaling(1 / 255), Mixing(name="common"))
found["hardly"] = seeing_all(Apart(name="apart"), Around(name="around"))
found["signed"] = seeing_all(BelowZero(name="below_zero"))
def steep():
    return [keras.layers.Dense(8, ops.sin, kernel_initializer=keras.initializers.VarianceScaling(8.0)), keras.layers.BatchNormalization()]
class Quantized(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")
    def call(self, x):
        x = ops.ones_like(x) * self.scale
        return x + tf.stop_gradient(ops.floor(x) - x)
found["rounded"] = seeing_all(Quantized(), keras.layers.Softmax(axis=0, name="softmax"), keras.layers.Dense(3))
found["deep"] = seeing_all(*(part for _ in range(10) for part in steep()))
found["gated"] = seeing_all(Gated(name="gated"))
found["missing"] = seeing_all(Filling(name="filling"))
counting = Counting(name="counting")
found["counts"] = seeing_all(counting, Measuring(name="measuring"))
found["counted"] = float(counting.seen.numpy())
found["logarithms"] = seeing_all(keras.layers.Lambda(lambda x: ops.log(x + 1) + ops.max(x, axis=0, keepdims=True), name="logarithm"))
scaled = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, name="scaled")])
scaled.quantize("float8")
scaled.compile("sgd", "mse")
agreement = rehearsal.Placements(scaled, Two(), print_nothing)
found["scaled adds up"] = agreement.adds_up(additive.Additive(scaled, scaled.train_step, agreement.layout), SPECS)
found["scaled"] = sorted(one.name for one in agreement.layout.seeing_all)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def actual():
    return forked.answer(SCRIPT)


@pytest.mark.parametrize(("loss", "adds_up"), [("mean", True), ("pairs", False), ("one number", False)])
def test_what_is_more_than_a_sum_does_not(actual, loss, adds_up):
    assert actual[loss] is adds_up


def test_a_layer_that_adds_a_loss_sees_all(actual):
    """Whether its loss is a sum or a mean over rows is not known."""
    assert actual["adding"] == "adding adds a loss"


@pytest.mark.parametrize(
    ("program", "layers"),
    [
        ("mixing", ["mixing"]),
        ("bytes", ["common"]),
        ("hardly", ["hardly"]),
        ("signed", ["below_zero"]),
        ("logarithms", ["logarithm"]),
        ("gated", ["gated"]),
        ("missing", ["filling"]),
        ("rounded", ["softmax"]),
        ("equal rows", ["cutting"]),
        ("lossless", ["adding"]),
        ("unseeded", ["common"]),
        ("deep", []),
    ],
)
def test_mixing_shows_in_some_range(actual, program, layers):
    """What rows have in common may be too small between 0 and 1, or 0; made-up rows may become equal; no loss or seed is needed.

    Rounding that many layers magnify is no mixing: a sum of parts is rounded otherwise.
    """
    assert actual[program] == layers
    assert not actual["differing"]


def test_first_image_of_unknown_batch_is_told(actual):
    """RandomElasticTransform gives it to all rows."""
    assert any(warning.startswith("elastic gives every row the first image") for warning in actual["elastic"])


def test_layers_that_count_see_all(actual):
    """In a variable of TensorFlow's own, and in a metric."""
    assert sorted(actual["counts"]) == ["counting", "measuring"]
    assert actual["counted"] == 0


def test_weights_that_gradients_replace_add_up_nowhere(actual):
    """Scales of float8: of all rows' gradients, their gradient is the next value."""
    assert not actual["scaled adds up"]
    assert "scaled" in actual["scaled"]
