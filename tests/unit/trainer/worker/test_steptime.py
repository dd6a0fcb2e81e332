"""The command that times a host's own step, as the doctor and a sweep run it."""

import json

import pytest

from control.common import configurations
from control.remote import worker_files
from tests.unit import forked


def timed(workers, spec=None, **changes):
    """What the command answers for a small model."""
    small = {"data.image_size": [16, 16, 3], "model": {"name": "task_cnn"}, "reduction.min_elements": 1024}
    config = configurations.dump(configurations.build(configurations.override({}, small | changes)))
    options = ["--classes", "3", "--batch", "4", "--workers", str(workers), "--threads", "1", "--seconds", "0.01"]
    completed = forked.run("-m", "trainer", "steptime", *options, text=json.dumps({"config": config, "spec": spec}))
    assert completed.returncode == 0, completed.stderr
    return worker_files.step_time(completed.stdout.strip().splitlines()[-1], "here")


def test_every_candidate_of_auto_is_timed():
    """Every method that auto may choose is timed with its sums and its exchange."""
    answer = timed(3)
    assert (answer["batch"], answer["transport"], sorted(answer["methods"])) == (4, "direct", ["packed", "powersgd"])
    packed, compressed = (answer["methods"][name] for name in ("packed", "powersgd"))
    assert (len(packed["sums"]), len(compressed["sums"])) == (1, 2)
    assert 10 * sum(compressed["sums"]) < sum(packed["sums"])
    assert all(list(one["exchange_seconds"]) == ["2", "3"] for one in (packed, compressed))
    assert compressed["exchange_seconds"]["3"] < packed["exchange_seconds"]["3"]


@pytest.mark.parametrize("transport", ["direct", "tensorflow"])
def test_method_that_is_set_is_only_one(transport):
    answer = timed(2, **{"reduction.name": "half", "reduction.transport": transport})
    assert (answer["transport"], list(answer["methods"])) == (transport, ["half"])
    assert list(answer["methods"]["half"]["exchange_seconds"]) == (["2"] if transport == "direct" else [])


def test_one_worker_sends_nothing():
    assert timed(1)["methods"] == {}


TABLE = {
    "structure": [{"words": 0, "size": 1}, 2],
    "leaves": [
        {"name": "x.words", "dtype": "int32", "shape": [None]},
        {"name": "x.size", "dtype": "float32", "shape": [2]},
        {"name": "y", "dtype": "float32", "shape": []},
    ],
}
SOURCE = """
import keras
from keras import layers


class Own(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def build(kind=keras.Model):
    inputs = {"words": keras.Input((None,), dtype="int32", name="words"), "size": keras.Input((2,), name="size")}
    words = layers.GlobalAveragePooling1D()(layers.Embedding(9, 4)(inputs["words"]))
    model = kind(inputs, layers.Dense(1)(layers.Concatenate()([words, inputs["size"]])))
    model.compile("adam", loss="mse")
    return model


def own():
    return build(Own)
"""


@pytest.mark.parametrize("function", ["build", "own"])
def test_a_compiled_model_is_timed_on_columns(function):
    model = {"name": "own", "file": "m.py", "function": function, "source": SOURCE}
    answer = timed(3, TABLE, model=model, **{"reduction.name": "packed"})
    (method,) = answer["methods"].values()
    assert answer["step_seconds"] > 0
    assert list(method["exchange_seconds"]) == ["2", "3"]
    assert sum(method["sums"]) >= 4 * (9 * 4 + 6 + 1)
