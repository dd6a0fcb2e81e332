"""TensorFlow Serving's REST format: what a request gives as arrays, what an answer is as JSON. NumPy and Pillow only."""

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from control.datasets.listing.image_headers import stated_size
from control.serving.refusals import BadRequest
from control.serving.signature import CSV, EXAMPLES, IMAGES, TENSORS, ExportedModel
from trainer.common.safe_text import printable
from trainer.data.images import decode, fit
from trainer.data.spec import STRING, Leaf
from trainer.evaluation.predict import BLOCK

Arrays = dict[str, np.ndarray]
Call = Callable[[Arrays], Arrays]
"""A signature of a loaded model."""
TEXTS = {CSV: Leaf("line", STRING, ()), EXAMPLES: Leaf("example", STRING, ()), IMAGES: Leaf("image_bytes", STRING, ())}
"""The input of each signature that parses."""
SHOWN = 80
JPEG, SCAN = b"\xff\xd8", b"\xff\xda"
"""How a JPEG begins, and how each of its scans does."""
MOST_ROWS = 4096
"""Maximum rows of a request."""
MOST_PARSED_BYTES = 384 * 1024 * 1024
"""Memory for a parsed body: `[],` takes thirty times as much in memory as in a body."""
VALUE_BYTES, LIST_BYTES, OBJECT_BYTES = 32, 64, 232
"""Memory of a parsed number, list and object."""
MOST_ARRAY_BYTES, FREE_ARRAY_BYTES, ARRAY_BYTES_PER_BYTE = 128 * 1024 * 1024, 32 * 1024 * 1024, 16
"""Limits of a request's padded arrays: at most, for any body, and per byte of a larger one. A few kilobytes may describe gigabytes."""
TEXT_BYTES = 48
"""Memory of a text beside its characters."""
MOST_PIXELS = 50_000_000
"""Maximum pixels of an encoded image."""
MOST_PIXELS_AT_ONCE, FREE_PIXELS, PIXELS_PER_BYTE = 4 * MOST_PIXELS, MOST_PIXELS + 14_000_000, 256
"""Limits of a request's pixels in encoded images, likewise."""
MOST_SCANNED = 10 * MOST_PIXELS_AT_ONCE
"""Pixels times scans of a request's JPEGs: a progressive one may go over its pixels thousands of times."""
MOST_ANSWER_VALUES, MOST_ANSWER_TEXT = 4 * 1024 * 1024, 16 * 1024 * 1024
"""Numbers or texts of an answer, and bytes of its texts."""
BLOCK_BYTES = 4 * 1024 * 1024
"""Bytes of a call's input if a model's inputs vary in length: intermediate results may be many times as large."""
AT_ONCE = 16_384
"""Numbers of an answer."""
INFINITE = 2**1023
"""Whole numbers from here are infinite as floats."""


@dataclass(frozen=True)
class Request:
    """Rows to predict."""

    signature: str
    arrays: Arrays
    """`[n, ...]` by input."""
    by_row: bool
    """True if the answer is a list of rows (`instances`), false if an array per output (`inputs`)."""
    block: int = BLOCK
    """Rows of a call of the model, at most."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(next(iter(self.arrays.values())))


class _Budget:
    """Resources left to a request, in proportion to its body."""

    def __init__(self, body_bytes: int):
        self._bytes = self.most_bytes = _most(body_bytes, MOST_ARRAY_BYTES, FREE_ARRAY_BYTES, ARRAY_BYTES_PER_BYTE)
        self._pixels = self.most_pixels = _most(body_bytes, MOST_PIXELS_AT_ONCE, FREE_PIXELS, PIXELS_PER_BYTE)
        self._scanned = MOST_SCANNED

    def take(self, name: str, rows: int, sides: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Count an array before it is made; BadRequest if it is too large."""
        size = rows * math.prod(sides) * (TEXT_BYTES if dtype.hasobject else dtype.itemsize)
        if size > self._bytes:
            most = f"at most {self.most_bytes / 2**20:,.0f} for a body of this size"
            raise BadRequest(f"{name}: {rows:,} rows take {size / 2**20:,.0f} MiB; {most}; send fewer rows per request")
        self._bytes -= size

    def take_text(self, name: str, size: int) -> None:
        """Count the bytes of a text, likewise."""
        if size > self._bytes:
            raise BadRequest(
                f"{name}: with the texts, the arrays take more than {self.most_bytes / 2**20:,.0f} MiB, the most for a body of this size; "
                "send fewer rows per request"
            )
        self._bytes -= size

    def take_image(self, data: bytes) -> None:
        """Count an encoded image before it is decoded; ValueError likewise."""
        width, height = stated_size(data)
        if width * height > MOST_PIXELS:
            raise ValueError(f"{width:,} x {height:,} pixels; at most {MOST_PIXELS:,} are decoded")
        self._pixels -= width * height
        if self._pixels < 0:
            raise ValueError(f"more than {self.most_pixels:,} pixels, the most for a body of this size; send fewer images")
        self._scanned -= width * height * (data.count(SCAN) if data.startswith(JPEG) else 1)
        if self._scanned < 0:
            raise ValueError(f"a JPEG of {data.count(SCAN):,} scans takes too long; save it with fewer")


def _most(body_bytes: int, most: int, free: int, per_byte: int) -> int:
    return min(most, max(free, per_byte * body_bytes))


def request_of(method: str, body: bytes | bytearray, model: ExportedModel) -> Request:
    """The rows of a request to `predict`, `classify` or `regress`; BadRequest says what is wrong with its body."""
    parsed, budget = _parsed(body), _Budget(len(body))
    return _rows_or_columns(parsed, model, budget, "instances") if method == "predict" else _examples(parsed, model, budget)


def _parsed(body: bytes | bytearray) -> dict[str, Any]:
    """The object of a body."""
    lists, objects = body.count(b"["), body.count(b"{")
    size = VALUE_BYTES * (body.count(b",") + lists + objects) + LIST_BYTES * lists + OBJECT_BYTES * objects
    if size > MOST_PARSED_BYTES:
        raise BadRequest(
            f"the body would take {size / 2**20:,.0f} MiB once parsed, and at most {MOST_PARSED_BYTES // 2**20} may; "
            "send fewer rows per request"
        )
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {printable(str(error), SHOWN)}") from None
    if not isinstance(value, dict):
        raise BadRequest(f'the body must be an object, as {{"instances": [...]}}; it is {_kind(value)}')
    return value


def _rows_or_columns(body: Mapping[str, Any], model: ExportedModel, budget: _Budget, where: str) -> Request:
    """The request of a body with `instances` or `inputs`, and perhaps `signature_name`; messages call the rows `where`."""
    asked = _signature(body.get("signature_name", ""), model)
    given = [name for name in ("instances", "inputs") if name in body]
    if len(given) != 1:
        raise BadRequest('the body needs either "instances", a list of rows, or "inputs", an array per input')
    leaves: Sequence[Leaf] = (TEXTS[asked],) if asked in TEXTS else model.inputs
    by_row = given[0] == "instances"
    columns = _of_rows(body["instances"], leaves, where) if by_row else _of_columns(body["inputs"], leaves)
    if asked == EXAMPLES:
        texts = [_text(value, leaves[0], (number,), budget) for number, value in enumerate(columns[leaves[0].name])]
        leaves, asked = (TEXTS[IMAGES],) if model.image_size else model.inputs, TENSORS
        columns = _features_of(texts, leaves)
    if model.image_size:
        # Decoded as for training, which TensorFlow's own decoder does not do to the last bit.
        return Request(TENSORS, {model.inputs[0].name: _images(columns[leaves[0].name], model, leaves[0].name, budget)}, by_row)
    arrays = {leaf.name: _array(leaf, columns[leaf.name], budget) for leaf in leaves}
    return Request(asked, arrays, by_row, _block(arrays) if any(leaf.varies for leaf in leaves) else BLOCK)


def _block(arrays: Arrays) -> int:
    row = sum(one.nbytes // len(one) for one in arrays.values())
    return max(1, min(BLOCK, BLOCK_BYTES // max(1, row)))


def _examples(body: Mapping[str, Any], model: ExportedModel, budget: _Budget) -> Request:
    """The request of `:classify` and `:regress`: `examples`, each with its features, over those in `context`."""
    given, context = body.get("examples"), body.get("context", {})
    if not isinstance(given, list) or not isinstance(context, dict) or not all(isinstance(one, dict) for one in given):
        raise BadRequest('the body needs "examples", a list of objects with a value per feature, and perhaps "context", an object')
    _signature(body.get("signature_name", ""), model)
    # Each example has a copy of the context.
    _check_rows(len(given))
    known = {IMAGES, *(leaf.name for leaf in model.inputs)}
    if unknown := [name for name in context if name not in known]:
        raise BadRequest(f"context: unknown: {printable(', '.join(unknown), SHOWN)}; this model takes: {', '.join(sorted(known))}")
    rows = [{**context, **one} for one in given]
    if model.image_size:
        rows = [row[IMAGES] if set(row) == {IMAGES} else row for row in rows]
    rows = [_scalars(row, model.inputs) if isinstance(row, dict) else row for row in rows]
    return _rows_or_columns({"instances": rows}, model, budget, "examples")


def _scalars(row: dict[str, Any], inputs: Sequence[Leaf]) -> dict[str, Any]:
    """A feature of one value may be a list of one."""
    plain = {leaf.name for leaf in inputs if not leaf.shape}
    return {name: value[0] if name in plain and isinstance(value, list) and len(value) == 1 else value for name, value in row.items()}


def _features_of(texts: Sequence[bytes], leaves: Sequence[Leaf]) -> dict[str, list[Any]]:
    """Values by row of serialized tf.Example. TensorFlow's own parser pads them before it can say how large they become."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.example.example_pb2 import Example

    made: dict[str, list[Any]] = {leaf.name: [] for leaf in leaves}
    for number, text in enumerate(texts):
        try:
            features = Example.FromString(text).features.feature
        except DecodeError:
            raise BadRequest(f"row {number}: {len(text):,} bytes that are no serialized tf.Example") from None
        for leaf in leaves:
            made[leaf.name].append(_feature(features, leaf, number))
    return made


def _feature(features: Any, leaf: Leaf, number: int) -> Any:
    wanted = "bytes_list" if leaf.dtype == STRING else "float_list" if leaf.dtype.startswith("float") else "int64_list"
    kind = features[leaf.name].WhichOneof("kind") if leaf.name in features else None
    if kind not in (None, wanted) or (kind is None and not leaf.varies):
        raise BadRequest(f"row {number}: its tf.Example needs the feature {leaf.name}, a {wanted}; {kind or 'it has none'}")
    flat = list(getattr(features[leaf.name], wanted).value) if kind else []
    count = math.prod(side for side in leaf.shape if side is not None)
    if not leaf.varies and len(flat) != count:
        raise BadRequest(f"row {number}: the feature {leaf.name} of its tf.Example has {len(flat):,} values; {leaf} needs {count:,}")
    return _nested([bool(one) for one in flat] if leaf.dtype == "bool" else flat, leaf.shape)


def _nested(flat: list[Any], shape: Sequence[int | None]) -> Any:
    if not shape:
        return flat[0]
    if len(shape) == 1 or not flat:
        return flat
    step = len(flat) // (shape[0] or 1)
    return [_nested(flat[start : start + step], shape[1:]) for start in range(0, len(flat), step)]


def _signature(asked: Any, model: ExportedModel) -> str:
    name = asked or TENSORS
    if name not in model.signatures:
        why = model.left_out.get(str(name), "")
        raise BadRequest(
            f"signature_name {printable(str(name), SHOWN)!r}: {why or 'unknown'}; this model has: {', '.join(model.signatures)}"
        )
    return str(name)


def _of_rows(rows: Any, leaves: Sequence[Leaf], where: str) -> dict[str, list[Any]]:
    if not isinstance(rows, list) or not rows:
        raise BadRequest(f"{where} must be a list of at least one row; it is {_kind(rows)}")
    _check_rows(len(rows))
    columns: dict[str, list[Any]] = {leaf.name: [] for leaf in leaves}
    for number, row in enumerate(rows):
        if len(leaves) == 1 and not (isinstance(row, dict) and set(row) == {leaves[0].name}):
            columns[leaves[0].name].append(row)
            continue
        if not isinstance(row, dict) or set(row) != set(columns):
            raise BadRequest(f"{where}[{number}] must be an object with {', '.join(columns)}; {_difference(row, columns)}")
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _of_columns(inputs: Any, leaves: Sequence[Leaf]) -> dict[str, list[Any]]:
    columns = {leaves[0].name: inputs} if len(leaves) == 1 and isinstance(inputs, list) else inputs
    names = [leaf.name for leaf in leaves]
    if not isinstance(columns, dict) or set(columns) != set(names):
        raise BadRequest(f"inputs must be an object with {', '.join(names)}; {_difference(columns, names)}")
    lengths = {name: len(values) if isinstance(values, list) else 0 for name, values in columns.items()}
    if len({*lengths.values()}) != 1 or not min(lengths.values()):
        sizes = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise BadRequest(f"inputs must be lists of equal length, at least 1; got: {sizes}")
    _check_rows(max(lengths.values()))
    return columns


def _check_rows(count: int) -> None:
    if count > MOST_ROWS:
        raise BadRequest(f"{count:,} rows; at most {MOST_ROWS:,} per request")


def _difference(given: Any, names: Any) -> str:
    if not isinstance(given, dict):
        return f"it is {_kind(given)}"
    missing, unknown = [name for name in names if name not in given], [str(name) for name in given if name not in names]
    parts = [f"{word}: {printable(', '.join(some), SHOWN)}" for word, some in (("missing", missing), ("unknown", unknown)) if some]
    return "; ".join(parts)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return "an empty list" if value == [] else names.get(type(value), "null")


def _array(leaf: Leaf, values: Sequence[Any], budget: _Budget) -> np.ndarray:
    """Values of an input as `[n, *shape]` in its type; sides that vary are padded with 0 or empty texts, as for training.

    Raises:
        BadRequest: a value of another type or shape, with its place.
    """
    sides = [_side(values, axis) if side is None else side for axis, side in enumerate(leaf.shape)]
    kept = np.dtype(object if leaf.dtype == STRING else leaf.dtype)
    budget.take(leaf.name, len(values), sides, kept)
    made = np.full((len(values), *sides), b"" if leaf.dtype == STRING else 0, kept)
    for number, value in enumerate(values):
        _fill(made, (number,), value, leaf, leaf.shape, budget)
    return made


def _side(values: Any, axis: int) -> int:
    """The longest list at a depth."""
    level = list(values)
    for _ in range(axis):
        level = [one for value in level if isinstance(value, list) for one in value]
    return max((len(value) for value in level if isinstance(value, list)), default=0)


def _fill(made: np.ndarray, place: tuple[int, ...], value: Any, leaf: Leaf, shape: tuple[int | None, ...], budget: _Budget) -> None:
    if not shape:
        made[place] = _scalar(value, leaf, place, budget)
        return
    if not isinstance(value, list) or (shape[0] is not None and len(value) != shape[0]):
        got = f"a list of {len(value)}" if isinstance(value, list) else _kind(value)
        raise BadRequest(f"{_at(leaf, place)}: {got}; it must be a list of {'any length' if shape[0] is None else shape[0]} ({leaf})")
    if len(shape) == 1 and leaf.dtype not in (STRING, "bool") and _fills_at_once(made, place, value, leaf):
        return
    for number, one in enumerate(value):
        _fill(made, (*place, number), one, leaf, shape[1:], budget)


def _fills_at_once(made: np.ndarray, place: tuple[int, ...], value: list[Any], leaf: Leaf) -> bool:
    """Fill a list of whole numbers or floats by NumPy, which is quicker; False if one by one is needed to say what is wrong."""
    kinds = {type(one) for one in value}
    if not kinds <= ({int, float} if leaf.dtype.startswith("float") else {int}):
        return False
    if int in kinds and not leaf.dtype.startswith("float"):
        limits = np.iinfo(leaf.dtype)
        if value and not (limits.min <= min(value) and max(value) <= limits.max):
            return False
    try:
        made[place][: len(value)] = value
    except (OverflowError, ValueError):
        return False
    return True


def _scalar(value: Any, leaf: Leaf, place: tuple[int, ...], budget: _Budget) -> Any:
    if leaf.dtype == STRING:
        return _text(value, leaf, place, budget)
    if leaf.dtype == "bool":
        if isinstance(value, bool):
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if leaf.dtype.startswith("float"):
            return float(value) if abs(value) < INFINITE or isinstance(value, float) else math.inf
        limits = np.iinfo(leaf.dtype)
        if (isinstance(value, int) or math.isfinite(value)) and value == int(value) and limits.min <= value <= limits.max:
            return int(value)
    shown = printable(json.dumps(value), SHOWN) if isinstance(value, str | int | float | bool | None) else _kind(value)
    raise BadRequest(f"{_at(leaf, place)}: {shown} is not of type {leaf.dtype}")


def _text(value: Any, leaf: Leaf, place: tuple[int, ...], budget: _Budget) -> bytes:
    if isinstance(value, bytes):
        budget.take_text(leaf.name, len(value))
        return value
    if isinstance(value, str):
        budget.take_text(leaf.name, len(value))
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        budget.take_text(leaf.name, len(value["b64"]))
        try:
            # Line breaks, and no padding, as TensorFlow Serving takes them.
            encoded = "".join(value["b64"].split())
            return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadRequest(f"{_at(leaf, place)}: b64 is not valid base64: {error}") from None
    raise BadRequest(f'{_at(leaf, place)}: {_kind(value)}; it must be a string, or {{"b64": "..."}}')


def _at(leaf: Leaf, place: tuple[int, ...]) -> str:
    return f"row {place[0]}, {leaf.name}{''.join(f'[{index}]' for index in place[1:])}"


def _images(values: Sequence[Any], model: ExportedModel, name: str, budget: _Budget) -> np.ndarray:
    """Images `[n, height, width, channels]` of arrays, or of encoded ones as `{"b64": ...}`."""
    size = model.image_size
    assert size is not None
    pixels, encoded = Leaf(name, "uint8", size), Leaf(name, STRING, ())
    budget.take(name, len(values), size, np.dtype(np.uint8))
    made = np.zeros((len(values), *size), np.uint8)
    for number, value in enumerate(values):
        if isinstance(value, list):
            _fill(made, (number,), value, pixels, size, budget)
            continue
        data = _text(value, encoded, (number,), budget)
        try:
            budget.take_image(data)
            made[number] = fit(decode(data), size)
        except ValueError as error:
            raise BadRequest(f"row {number}, {name}: {printable(str(error), SHOWN)}") from None
    return made


def check_answer(shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse an answer of too many values; `shapes` of its outputs, each with the number of rows first."""
    count = sum(math.prod(shape) for shape in shapes.values())
    if count > MOST_ANSWER_VALUES:
        rows = next(iter(shapes.values()))[0]
        raise BadRequest(f"{rows:,} rows give {count:,} values; an answer has at most {MOST_ANSWER_VALUES:,}; send fewer rows per request")


def answer_of(method: str, outputs: Arrays, model: ExportedModel, by_row: bool = True) -> dict[str, Any]:
    """The answer to a request.

    `predict`: with one output its values, with several an object. `classify`: for each row its classes and their scores, in the order
    of the classes. `regress`: a number per row.

    Raises:
        BadRequest: too many values, or too long texts; a model without classes, or without one number per row.
    """
    check_answer({name: output.shape for name, output in outputs.items()})
    size = sum(len(text) for output in outputs.values() if output.dtype == object for text in output.flat)
    if size > MOST_ANSWER_TEXT:
        raise BadRequest(f"the answer's texts take more than {MOST_ANSWER_TEXT // 2**20} MiB; send fewer rows per request")
    if method == "classify":
        return {"results": _classes(outputs, model)}
    if method == "regress":
        return {"results": _numbers(outputs)}
    values = {name: _plain(name, output) for name, output in outputs.items()}
    (first, *more) = values
    if not by_row:
        return {"outputs": values if more else values[first]}
    if not more:
        return {"predictions": values[first]}
    return {"predictions": [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]}


def _classes(outputs: Arrays, model: ExportedModel) -> list[list[list[Any]]]:
    scores = [output for output in outputs.values() if output.ndim == 2 and output.shape[1] == len(model.classes)]
    if not model.classes or len(scores) != 1:
        raise BadRequest("this model has no classes; use :predict")
    return [[list(pair) for pair in zip(model.classes, row, strict=True)] for row in _plain("", scores[0])]


def _numbers(outputs: Arrays) -> Any:
    (values, *more) = outputs.values()
    if more or values.dtype == object or values.size != len(values):
        raise BadRequest("this model does not give one number per row; use :predict")
    return _plain("", values.reshape(-1))


def _plain(name: str, output: np.ndarray) -> Any:
    if output.dtype == np.float32:
        # The shortest digits that are this number in 32 bits, as TensorFlow Serving writes them; in parts, between which other threads run.
        rows = max(1, AT_ONCE // max(1, math.prod(output.shape[1:])))
        parts = (output[start : start + rows] for start in range(0, len(output), rows))
        return [row for part in parts for row in part.astype(str).astype(np.float64).tolist()]
    if output.dtype != object:
        return output.tolist()
    encode = (
        (lambda one: {"b64": base64.b64encode(one).decode()}) if name.endswith("_bytes") else lambda one: one.decode("utf-8", "replace")
    )
    return np.vectorize(encode, otypes=[object])(output).tolist()
