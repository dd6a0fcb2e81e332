"""What callbacks keep, written as JSON and read again."""

import collections
import json
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import remembered


class Meter:
    """An object of the user's own."""

    def __init__(self, total=0.0):
        self.total = total


def again(value, now=None, of_model=()):
    """As a state gives it back to where `now` is."""
    return remembered.decoded(json.loads(json.dumps(remembered.encoded(value, of_model))), now)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, "x", True]},
        {3: "three", (1, 2): None},
        {"lockstep": "array"},
        (1, (2, 3)),
        {"b", "a"},
        frozenset({1}),
        collections.deque([1, 2], maxlen=5),
        float("inf"),
    ],
    ids=["none", "dict", "keys", "tag", "tuple", "set", "frozenset", "deque", "infinite"],
)
def test_values_come_back(value):
    found = again(value)
    assert (type(found), found, getattr(found, "maxlen", None)) == (type(value), value, getattr(value, "maxlen", None))


@pytest.mark.parametrize(
    "array",
    [np.eye(2, dtype="float16"), np.zeros((0, 3), "int64"), np.array(True), np.array([1j])],
    ids=list("abcd"),
)
def test_arrays_come_back(array):
    (found,) = again([array])
    assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
    assert found.flags.writeable


def test_tensors_come_back():
    assert tf.is_tensor(found := again(tf.constant([1.5, 2.0])))
    assert found.numpy().tolist() == [1.5, 2.0]


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState, random.Random], ids=["numpy", "numpy, old", "python"])
def test_generators_go_on(make):
    mine, theirs = make(1), make(2)
    mine.random()
    assert again(mine, theirs) is theirs
    assert theirs.random() == mine.random()


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


def test_weights_of_the_model_are_not_written_twice():
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    assert remembered.encoded(layer, {id(one) for one in layer.variables})["values"] == []
    assert len(remembered.encoded(layer)["values"]) == 2


@pytest.mark.parametrize("value", [object(), np.array([object()]), [print], tf.data.Dataset.range(1)], ids=list("abcd"))
def test_what_is_not_known_is_refused(value):
    with pytest.raises(remembered.Unknown):
        remembered.encoded(value)


def test_large_arrays_are_refused(monkeypatch):
    monkeypatch.setattr(remembered, "LARGEST", 2**20)
    remembered.encoded([np.zeros(2**17)])
    with pytest.raises(remembered.Unknown, match="more than 1 MiB"):
        remembered.encoded({"weights": [np.zeros(2**17), np.zeros(1)]})
