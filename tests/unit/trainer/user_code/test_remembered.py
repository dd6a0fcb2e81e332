"""What callbacks keep, written as JSON and read again."""

import collections
import dataclasses
import json
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.user_code import callback_state


class Meter:
    """An object of the user's own."""

    def __init__(self, total=0.0):
        self.total = total


@dataclasses.dataclass(frozen=True)
class Row:
    """Another."""

    loss: float


def again(value, now=None, of_model=()):
    """As a state gives it back to where `now` is."""
    return callback_state.decoded(json.loads(json.dumps(callback_state.Encoder(of_model)(value))), now)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, "x", True]},
        {3: "three", (1, 2): None},
        {"lockstep": "array"},
        collections.Counter({3: 2}),
        [Row(0.5)],
        (1, (2, 3)),
        {"b", "a"},
        frozenset({1}),
        collections.deque([1, 2], maxlen=5),
        float("inf"),
    ],
    ids=["none", "dict", "keys", "tag", "counter", "objects", "tuple", "set", "frozenset", "deque", "infinite"],
)
def test_values_come_back(value):
    found = again(value)
    assert (type(found), found, getattr(found, "maxlen", None)) == (type(value), value, getattr(value, "maxlen", None))


@pytest.mark.parametrize(
    "array",
    [np.eye(2, dtype="float16"), np.zeros((0, 3), "int64"), np.array(True), np.array([1j])],
    ids=["half", "empty", "one", "complex"],
)
def test_arrays_come_back(array):
    (found,) = again([array])
    assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
    assert found.flags.writeable


def test_tensors_and_variables_come_back():
    """Variables are made where there are none."""
    tensor, variable = again([tf.constant([1.5, 2.0]), tf.Variable(2.0)], [])
    assert tf.is_tensor(tensor)
    assert (tensor.numpy().tolist(), float(variable)) == ([1.5, 2.0], 2.0)


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState, random.Random], ids=["numpy", "numpy, old", "python"])
def test_generators_go_on(make):
    mine, theirs = make(1), make(2)
    # One of a pair of normal numbers is kept for the next call.
    draw = "normalvariate" if make is random.Random else "normal"
    getattr(mine, draw)()
    assert again(mine, theirs) is theirs
    assert getattr(theirs, draw)() == getattr(mine, draw)()


def test_what_is_in_objects_is_put_back_there():
    """In variables, metrics and objects of the user's own, whatever they are in."""
    mine = {"mean": keras.metrics.Mean(), "weight": tf.Variable(2.0), "meters": [Meter(3.0)]}
    mine["mean"].update_state(5.0)
    theirs = {"mean": keras.metrics.Mean(), "weight": tf.Variable(0.0), "meters": [Meter()]}
    before = dict(theirs), theirs["meters"][0]
    found = again(mine, theirs)
    assert all(found[name] is before[0][name] for name in ("mean", "weight"))
    assert found["meters"][0] is before[1]
    assert (float(found["mean"].result()), float(found["weight"]), found["meters"][0].total) == (5.0, 2.0, 3.0)


def test_arrays_and_dicts_are_put_back_in_place():
    """Others may share them."""
    array, counts = np.zeros(2), collections.defaultdict(int)
    found = again({"array": np.ones(2), "counts": collections.defaultdict(int, {1: 2})}, {"array": array, "counts": counts})
    assert found["array"] is array
    assert found["counts"] is counts
    assert (array.tolist(), counts[1], counts[2]) == ([1.0, 1.0], 2, 0)


@pytest.mark.parametrize(
    ("value", "now"),
    [
        (np.random.default_rng(1), None),
        (collections.defaultdict(int, {1: 2}), {}),
        (keras.metrics.Mean(), None),
        (tf.Variable([1.0]), tf.Variable([1.0, 2.0])),
    ],
    ids=["generator", "dict", "metric", "shape"],
)
def test_what_does_not_fit_is_refused(value, now):
    with pytest.raises(callback_state.Unknown):
        again(value, now)


def test_positions_outside_of_generators_are_refused():
    """NumPy reads what is there."""
    state = callback_state.Encoder()(np.random.RandomState(1))
    state["state"]["state"]["pos"] = 2**30
    with pytest.raises(callback_state.Unknown):
        callback_state.decoded(state, np.random.RandomState(1))


def test_weights_of_the_model_are_not_written_twice():
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    assert callback_state.Encoder({id(one) for one in layer.variables})(layer)["values"] == []
    assert len(callback_state.Encoder()(layer)["values"]) == 2


@pytest.mark.parametrize(
    "value",
    [object(), np.array([object()]), [print], tf.data.Dataset.range(1)],
    ids=["object", "objects", "function", "data"],
)
def test_what_is_not_known_is_refused(value):
    with pytest.raises(callback_state.Unknown):
        callback_state.Encoder()(value)


def test_large_arrays_are_refused(monkeypatch):
    monkeypatch.setattr(callback_state, "LARGEST", 2**20)
    callback_state.Encoder()([np.zeros(2**17)])
    with pytest.raises(callback_state.Unknown, match="more than 1 MiB"):
        callback_state.Encoder()({"weights": [np.zeros(2**17), np.zeros(1)]})
