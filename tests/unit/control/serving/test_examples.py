"""Serialized tf.Example, which strangers send."""

import base64

import pytest
import tensorflow as tf

from control.serving.protocol import BadRequest, Budget, predict_request
from control.serving.signature import EXAMPLES
from tests.unit.control.serving.test_protocol import PICTURES, ROWS, WORDS, encoded, model
from trainer.data.spec import Leaf

PAIR = model(Leaf("a", "float32", (2, 2)), Leaf("b", "bool", ()))
IMAGES = model(*PICTURES.inputs, size=PICTURES.image_size, signatures=(EXAMPLES,))


def example(**features):
    """Serialized, as a row of a body."""
    kinds = {bytes: ("bytes_list", tf.train.BytesList), float: ("float_list", tf.train.FloatList), int: ("int64_list", tf.train.Int64List)}
    made = {}
    for name, values in features.items():
        kind, values_of = kinds[type(values[0])]
        made[name] = tf.train.Feature(**{kind: values_of(value=values)})
    return row(tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString())


def row(text):
    return {"b64": base64.b64encode(text).decode()}


def arrays(of, *rows):
    made = predict_request({"signature_name": EXAMPLES, "instances": list(rows)}, of, Budget(1000)).arrays
    return {name: array.tolist() for name, array in made.items()}


@pytest.mark.parametrize(
    ("of", "rows", "expected"),
    [
        (ROWS, [example(miles=[1.5], company=[b"a"])], {"miles": [1.5], "company": [b"a"]}),
        (WORDS, [example(x=[1, 2, 3]), example(x=[4]), row(b"")], {"x": [[1, 2, 3], [4, 0, 0], [0, 0, 0]]}),
        (PAIR, [example(a=[1.0, 2.0, 3.0, 4.0], b=[1])], {"a": [[[1, 2], [3, 4]]], "b": [True]}),
        (IMAGES, [example(image_bytes=[base64.b64decode(encoded()["b64"])])], {"image": [[[[255, 0, 0]] * 2] * 2]}),
    ],
)
def test_features_become_arrays(of, rows, expected):
    assert arrays(of, *rows) == expected


@pytest.mark.parametrize(
    ("of", "given", "words"),
    [
        (ROWS, row(b"\xff\xfe\x80rubbish"), "row 0: 10 bytes that are no serialized tf.Example"),
        (WORDS, row(b"\n\xff\xff\xff\xff\x0f"), "row 0: 6 bytes that are no serialized tf.Example"),
        (ROWS, "text", "row 0: 4 bytes that are no serialized tf.Example"),
        (ROWS, 3, "row 0, example: a number; it must be a string"),
        (ROWS, row(b""), "row 0: its tf.Example needs the feature miles, a float_list; it has none"),
        (ROWS, example(miles=[1], company=[b"a"]), "needs the feature miles, a float_list; int64_list"),
        (ROWS, example(miles=[1.0, 2.0], company=[b"a"]), "the feature miles of its tf.Example has 2 values; miles float32 needs 1"),
        (IMAGES, example(image_bytes=[b"rubbish"]), "row 0, image_bytes: not a JPEG, PNG, BMP or GIF"),
    ],
)
def test_what_is_no_example_is_refused(of, given, words):
    with pytest.raises(BadRequest, match=words):
        arrays(of, given)


def test_small_example_does_not_become_large_array():
    with pytest.raises(BadRequest, match="x: 4,001 rows take 61 MiB; at most 32"):
        arrays(WORDS, example(x=[1] * 2000), *[row(b"")] * 4000)
