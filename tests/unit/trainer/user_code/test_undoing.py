"""What Python code of the user's own keeps is put back where it was only tried."""

import json

import pytest

from tests.unit import forked

SCRIPT = """
import collections
import itertools
import json
import types
import numpy as np
import tensorflow as tf
from trainer.user_code.undo import State, undone

total, seen = 0, []

def counted():
    global total
    total += 1
    seen.append(total)
    return total, len(seen)

def closed():
    inside = [0]
    def more():
        inside[0] += 1
        return inside[0]
    return more

class Thing:
    def __init__(self, value, move):
        self.value, self._move = value, move
    def moved(self):
        return np.asarray(self._move(self.value)).tolist()
    def function(self):
        return counted(), closing()

def attribute(other):
    other.n += 1
    return other.n

def in_place(array):
    array += 1
    return array

closing = closed()
moves = {
    "count": (itertools.count(), next),
    "generator": ((number for number in range(9)), next),
    "deque": (collections.deque([5], maxlen=2), lambda value: (value.append(len(value)), list(value))[1]),
    "array": (np.zeros(2), in_place),
    "object": (types.SimpleNamespace(n=0), attribute),
    "list in a dict": ({"a": [[1]]}, lambda value: (value["a"][0].append(1), len(value["a"][0]))[1]),
    "dataset": (iter(tf.data.Dataset.range(9)), lambda value: next(value).numpy()),
    "generator of TensorFlow": (tf.random.Generator.from_seed(3), lambda value: value.normal([2]).numpy()),
    "function": (None, lambda value: None),
}
found = {}
for name, (value, move) in moves.items():
    thing = Thing(value, move)
    call = thing.function if name == "function" else thing.moved
    with undone([thing]):
        first = [call(), call()]
    found[name] = first, [call(), call()]
again, fixed = Thing((number for number in range(9)), next), np.frombuffer(b"12", np.uint8)
state, around = State([again, Thing(fixed, len)]), []
around.append(around)
found["again"] = [(again.moved(), again.moved(), state.restore())[:2] for _ in range(2)]
with undone([Thing(around, len)]):
    pass
print(json.dumps(found))
"""
NAMES = ["count", "generator", "deque", "array", "object", "list in a dict", "dataset", "generator of TensorFlow", "function"]


@pytest.fixture(scope="module")
def moved():
    done = forked.run("-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_state_is_put_back_each_time(moved):
    """Also beside an array that can't be written, and a list in itself."""
    assert moved["again"] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_tried_happens_again(moved, name):
    """Also what a module and a closure hold, in "function"."""
    tried, afterwards = moved[name]
    assert tried == afterwards
    assert tried[0] != tried[1]
