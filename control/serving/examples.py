"""Serialized tf.Example as the columns of a request. TensorFlow's own parser pads them before it can say how large they become."""

import math
from collections.abc import Sequence
from typing import Any

from control.serving.refusals import BadRequest
from control.serving.signature import IMAGES, Exported
from trainer.data.spec import STRING, Leaf

ENCODED = Leaf(IMAGES, STRING, ())


def columns(texts: Sequence[bytes], model: Exported) -> tuple[Sequence[Leaf], dict[str, list[Any]]]:
    """The features that a model takes, and their values by row; BadRequest names the row that has others."""
    leaves = (ENCODED,) if model.image_size else model.inputs
    made: dict[str, list[Any]] = {leaf.name: [] for leaf in leaves}
    for number, text in enumerate(texts):
        features = _features(text, number)
        for leaf in leaves:
            made[leaf.name].append(_value(features, leaf, number))
    return leaves, made


def _features(text: bytes, number: int) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.example.example_pb2 import Example

    try:
        return Example.FromString(text).features.feature
    except DecodeError:
        raise BadRequest(f"row {number}: {len(text):,} bytes that are no serialized tf.Example") from None


def _value(features: Any, leaf: Leaf, number: int) -> Any:
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
