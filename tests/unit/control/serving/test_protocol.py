"""What a client may send, and the error for anything else."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from control.serving import protocol
from control.serving.protocol import BadRequest
from control.serving.signature import CSV, EXAMPLES, IMAGES, TENSORS, ExportedModel
from tests.unit.control.serving.conftest import features, png
from trainer.data.spec import STRING, Leaf


def model(*inputs, size=None, signatures=(TENSORS, CSV, EXAMPLES), classes=()):
    return ExportedModel("one", 3, "d", "t", inputs, (Leaf("y", "float32", (1,)),), classes, size, signatures, {})


ROWS = model(Leaf("miles", "float32", ()), Leaf("company", STRING, ()))
VECTOR = model(Leaf("x", "float32", (2,)))
WORDS = model(Leaf("x", "int64", (None,)))
PICTURES = model(Leaf("image", "uint8", (2, 2, 3)), size=(2, 2, 3), signatures=(TENSORS, IMAGES))
RED = [[[255, 0, 0]] * 2] * 2


def request(body, of):
    return protocol.request_of("classify" if "examples" in body else "predict", json.dumps(body).encode(), of)


def arrays(body, of):
    return {name: array.tolist() for name, array in request(body, of).arrays.items()}


def row(text):
    return {"b64": base64.b64encode(text).decode()}


def encoded(side=2):
    return row(png(np.full((side, side, 3), (255, 0, 0), np.uint8)))


@pytest.mark.parametrize(
    ("body", "of", "expected"),
    [
        ({"instances": [{"miles": 1, "company": "a"}]}, ROWS, {"miles": [1], "company": [b"a"]}),
        # Base64 may have line breaks, and no padding.
        *(({"instances": [{"miles": 2.5, "company": {"b64": b}}]}, ROWS, {"miles": [2.5], "company": [b"b"]}) for b in ("Yg==", "Y\ng")),
        ({"inputs": {"miles": [1, 2], "company": ["a", "b"]}}, ROWS, {"miles": [1, 2], "company": [b"a", b"b"]}),
        ({"instances": [[1, 2], [3, 4]]}, VECTOR, {"x": [[1, 2], [3, 4]]}),
        ({"instances": [{"x": [1, 2]}]}, VECTOR, {"x": [[1, 2]]}),
        ({"inputs": [[1, 2]]}, VECTOR, {"x": [[1, 2]]}),
        ({"inputs": {"x": [[1, 2]]}}, VECTOR, {"x": [[1, 2]]}),
        ({"instances": [[1, 2, 3], [4]]}, WORDS, {"x": [[1, 2, 3], [4, 0, 0]]}),
        ({"instances": [[2.0]]}, WORDS, {"x": [[2]]}),
        ({"instances": [[10**400, -1]]}, VECTOR, {"x": [[np.inf, -1]]}),
        ({"signature_name": "csv", "instances": ["1,a", "2,b"]}, ROWS, {"line": [b"1,a", b"2,b"]}),
        ({"instances": [RED]}, PICTURES, {"image": [RED]}),
        ({"instances": [encoded(), RED]}, PICTURES, {"image": [RED, RED]}),
        ({"instances": [{"image": encoded(9)}]}, PICTURES, {"image": [RED]}),
        ({"signature_name": "image_bytes", "instances": [{"image_bytes": encoded()}, encoded()]}, PICTURES, {"image": [RED, RED]}),
    ],
)
def test_rows_and_columns(body, of, expected):
    assert arrays(body, of) == expected


@pytest.mark.parametrize(
    ("body", "of", "words"),
    [
        ({}, ROWS, 'needs either "instances", a list of rows, or "inputs"'),
        ({"instances": [], "inputs": []}, ROWS, 'needs either "instances"'),
        ({"instances": []}, ROWS, "a list of at least one row; it is an empty list"),
        ({"instances": "a"}, ROWS, "it is a string"),
        ({"instances": [{"miles": 1}]}, ROWS, r"instances\[0\] must be an object with miles, company; missing: company"),
        ({"instances": [{"miles": 1, "company": "a", "tip": 2}]}, ROWS, "unknown: tip"),
        ({"instances": [3]}, ROWS, "it is a number"),
        ({"inputs": {"miles": [1, 2], "company": ["a"]}}, ROWS, "equal length, at least 1; got: miles 2, company 1"),
        ({"inputs": {"miles": [], "company": []}}, ROWS, "at least 1"),
        ({"inputs": 3}, ROWS, "it is a number"),
        ({"instances": [{"miles": "far", "company": "a"}]}, ROWS, 'row 0, miles: "far" is not of type float32'),
        ({"instances": [{"miles": True, "company": "a"}]}, ROWS, "true is not of type float32"),
        ({"instances": [{"miles": 1, "company": 7}]}, ROWS, r"row 0, company: a number; it must be a string, or \{\"b64\": \"...\"\}"),
        ({"instances": [{"miles": 1, "company": {"b64": "??"}}]}, ROWS, "b64 is not valid base64"),
        ({"instances": [[1, 2], [1, 2, 3]]}, VECTOR, r"row 1, x: a list of 3; it must be a list of 2 \(x float32 \[2\]\)"),
        ({"instances": [[[1], 2]]}, VECTOR, r"row 0, x\[0\]: a list is not of type float32"),
        ({"instances": [[1.5]]}, WORDS, r"row 0, x\[0\]: 1.5 is not of type int64"),
        ({"instances": [[2**63]]}, WORDS, "is not of type int64"),
        ({"instances": [[10**400]]}, WORDS, r"row 0, x\[0\]: 1000000"),
        ({"instances": [[float("nan")]]}, WORDS, "NaN is not of type int64"),
        ({"instances": [[[[256, 0, 0]] * 2] * 2]}, PICTURES, r"row 0, image\[0\]\[0\]\[0\]: 256 is not of type uint8"),
        ({"instances": [{"b64": "aGVsbG8="}]}, PICTURES, "row 0, image: not a JPEG, PNG, BMP or GIF"),
        ({"signature_name": "csv", "instances": ["1"]}, PICTURES, "'csv': unknown; this model has: serving_default, image_bytes"),
        ({"signature_name": ["csv"], "instances": ["1"]}, ROWS, "unknown; this model has"),
    ],
)
def test_what_does_not_fit_is_named_with_place(body, of, words):
    with pytest.raises(BadRequest, match=words):
        request(body, of)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[1]", "it is a list"),
        (b"null", "it is null"),
        (b"{", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
    ],
)
def test_a_body_is_an_object(body, words):
    with pytest.raises(BadRequest, match=words):
        protocol.request_of("predict", body, ROWS)


PAIRS = model(Leaf("x", "int64", (None,)), Leaf("y", "int64", (None,)))
LONG = {"instances": [[]] * 4000 + [[1] * 2000]}


@pytest.mark.parametrize(
    ("body", "of", "words"),
    [
        ({"instances": [[1]] * 5000}, WORDS, "5,000 rows; at most 4,096 per request"),
        ({"inputs": {"x": [[1]] * 5000}}, WORDS, "5,000 rows; at most 4,096"),
        (LONG, WORDS, "x: 4,001 rows take 61 MiB; at most 32 for a body of this size"),
        ({"instances": [{"x": [1] * 1000, "y": [1] * 1000}] + [{"x": [], "y": []}] * 2499}, PAIRS, "y: 2,500 rows take 19 MiB; at most 32"),
        ({"context": {"company": "a" * 20_000}, "examples": [{"miles": 1}] * 4000}, ROWS, "company: with the texts, the arrays take"),
        ({"context": {"company": {"b64": "YQ" * 10_000}}, "examples": [{"miles": 1}] * 4000}, ROWS, "the arrays take more than 32 MiB"),
        ({"context": {f"name {number}": 1 for number in range(2000)}, "examples": [{}] * 5}, ROWS, "context: unknown: name 0, name 1, "),
        ({"context": {"miles": 1}, "examples": [{}] * 5000}, ROWS, "5,000 rows; at most 4,096 per request"),
    ],
)
def test_small_body_does_not_become_large_array(body, of, words):
    with pytest.raises(BadRequest, match=words) as refused:
        request(body, of)
    assert len(str(refused.value)) < 200


def test_larger_body_may_have_larger_arrays():
    body = json.dumps(LONG).encode().ljust(4 * 2**20)
    assert protocol.request_of("predict", body, WORDS).arrays["x"].nbytes > protocol.FREE_ARRAY_BYTES


def test_body_whose_values_take_memory_is_not_parsed(monkeypatch):
    monkeypatch.setattr(protocol, "MOST_PARSED_BYTES", 2**20)
    monkeypatch.setattr(protocol.json, "loads", None)
    for part in (b"[],", b"{},", b"0,"):
        with pytest.raises(BadRequest, match=r"the body would take \d+ MiB once parsed, and at most 1 may; send fewer rows"):
            protocol.request_of("predict", b'{"instances": [' + part * 70_000 + b"0]}", ROWS)


def test_long_rows_are_computed_few_at_once():
    assert request({"instances": [[1] * 70_000] * 30}, WORDS).block == 7
    assert request({"instances": [[1]] * 300}, WORDS).block == protocol.BLOCK


def jpeg(side, scans):
    """A progressive JPEG that goes over its pixels again and again."""
    stream = io.BytesIO()
    Image.new("L", (side, side)).save(stream, "JPEG", progressive=True)
    whole = stream.getvalue()
    return row(whole[:-2] + whole[whole.rindex(protocol.SCAN) : -2] * scans + whole[-2:])


def test_jpeg_of_many_scans_is_not_decoded(monkeypatch):
    monkeypatch.setattr(protocol, "MOST_SCANNED", 64 * 64 * 20)
    assert arrays({"instances": [jpeg(64, 0)]}, PICTURES)
    with pytest.raises(BadRequest, match="row 0, image: a JPEG of 56 scans takes too long; save it with fewer"):
        arrays({"instances": [jpeg(64, 50)]}, PICTURES)


def test_answer_of_too_many_values_is_refused(monkeypatch):
    protocol.check_answer({"y": (4096, 1000)})
    with pytest.raises(BadRequest, match="4,096 rows give 8,192,000 values; an answer has at most 4,194,304; send fewer rows"):
        protocol.check_answer({"y": (4096, 1000), "z": (4096, 1000)})
    monkeypatch.setattr(protocol, "MOST_ANSWER_TEXT", 2**20)
    with pytest.raises(BadRequest, match="the answer's texts take more than 1 MiB; send fewer rows per request"):
        protocol.answer_of("predict", {"y": np.array([b"a" * 2**19, b"b" * 2**19, b"c"], object)}, VECTOR)


def test_images_have_bounded_pixels(monkeypatch):
    monkeypatch.setattr(protocol, "FREE_PIXELS", 200)
    monkeypatch.setattr(protocol, "PIXELS_PER_BYTE", 0)
    assert len(request({"instances": [encoded(10), encoded(10)]}, PICTURES).arrays["image"]) == 2
    with pytest.raises(BadRequest, match="row 2, image: more than 200 pixels, the most for a body of this size; send fewer images"):
        request({"instances": [encoded(10), encoded(10), encoded(1)]}, PICTURES)
    monkeypatch.setattr(protocol, "MOST_PIXELS", 80)
    monkeypatch.setattr(protocol, "decode", None)
    with pytest.raises(BadRequest, match="row 0, image: 9 x 9 pixels; at most 80 are decoded"):
        request({"instances": [encoded(9)]}, PICTURES)


def predicted(outputs, by_row):
    return protocol.answer_of("predict", outputs, VECTOR, by_row)


def test_a_large_answer_is_that_of_its_parts(monkeypatch):
    output = np.linspace(0, 1, 30, dtype=np.float32).reshape(5, 3, 2)
    whole = predicted({"y": output}, by_row=True)
    for count in (1, 7, 12, 100):
        monkeypatch.setattr(protocol, "AT_ONCE", count)
        assert predicted({"y": output}, by_row=True) == whole
    assert predicted({"y": np.zeros((2, 0), np.float32)}, by_row=True) == {"predictions": [[], []]}


def test_examples_with_a_context():
    body = {"context": {"company": "a"}, "examples": [{"miles": 1}, {"miles": [2], "company": ["b"]}]}
    assert arrays(body, ROWS) == {"miles": [1, 2], "company": [b"a", b"b"]}
    assert arrays({"examples": [{"image_bytes": encoded()}]}, PICTURES) == {"image": [RED]}
    for body in (b"{}", b'{"examples": 3}', b'{"examples": [1]}', b'{"examples": [], "context": []}'):
        with pytest.raises(BadRequest, match='needs "examples"'):
            protocol.request_of("regress", body, ROWS)


def test_answers_by_row_and_by_column():
    one, two = np.array([[1.0], [2.0]]), np.array([b"a", b"b"], object)
    assert predicted({"y": one}, by_row=True) == {"predictions": [[1.0], [2.0]]}
    # As many digits as 32 bits need.
    assert predicted({"y": np.array([0.1, np.nan, 1e-30], np.float32)}, by_row=True)["predictions"][::2] == [
        0.1,
        1e-30,
    ]
    assert predicted({"y": one}, by_row=False) == {"outputs": [[1.0], [2.0]]}
    assert predicted({"y": one, "name": two}, by_row=True) == {"predictions": [{"y": [1.0], "name": "a"}, {"y": [2.0], "name": "b"}]}
    assert predicted({"y": one, "x_bytes": two}, by_row=False)["outputs"]["x_bytes"] == [
        {"b64": "YQ=="},
        {"b64": "Yg=="},
    ]


def test_classes_and_numbers():
    pets = model(Leaf("x", "float32", ()), classes=("cat", "dog"))
    assert protocol.answer_of("classify", {"p": np.array([[0.25, 0.75]])}, pets) == {"results": [[["cat", 0.25], ["dog", 0.75]]]}
    assert protocol.answer_of("regress", {"y": np.array([[1.5], [2.0]])}, VECTOR) == {"results": [1.5, 2.0]}
    with pytest.raises(BadRequest, match="no classes"):
        protocol.answer_of("classify", {"y": np.array([[1.5]])}, VECTOR)
    with pytest.raises(BadRequest, match="one number per row"):
        protocol.answer_of("regress", {"y": np.array([[1.5, 2.0]])}, VECTOR)


# --- serialized tf.Example, which strangers send


PAIR = model(Leaf("a", "float32", (2, 2)), Leaf("b", "bool", ()))
SERIALIZED_IMAGES = model(*PICTURES.inputs, size=PICTURES.image_size, signatures=(EXAMPLES,))


def example(**values):
    """Serialized, as a row of a body."""
    return row(features(**values))


def parsed(of, *rows):
    return arrays({"signature_name": EXAMPLES, "instances": list(rows)}, of)


@pytest.mark.parametrize(
    ("of", "rows", "expected"),
    [
        (ROWS, [example(miles=[1.5], company=[b"a"])], {"miles": [1.5], "company": [b"a"]}),
        (WORDS, [example(x=[1, 2, 3]), example(x=[4]), row(b"")], {"x": [[1, 2, 3], [4, 0, 0], [0, 0, 0]]}),
        (PAIR, [example(a=[1.0, 2.0, 3.0, 4.0], b=[1])], {"a": [[[1, 2], [3, 4]]], "b": [True]}),
        (SERIALIZED_IMAGES, [example(image_bytes=[base64.b64decode(encoded()["b64"])])], {"image": [[[[255, 0, 0]] * 2] * 2]}),
    ],
)
def test_features_become_arrays(of, rows, expected):
    assert parsed(of, *rows) == expected


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
        (SERIALIZED_IMAGES, example(image_bytes=[b"rubbish"]), "row 0, image_bytes: not a JPEG, PNG, BMP or GIF"),
    ],
)
def test_what_is_no_example_is_refused(of, given, words):
    with pytest.raises(BadRequest, match=words):
        parsed(of, given)


def test_small_example_does_not_become_large_array():
    with pytest.raises(BadRequest, match="x: 4,001 rows take 61 MiB; at most 32"):
        parsed(WORDS, example(x=[1] * 2000), *[row(b"")] * 4000)
