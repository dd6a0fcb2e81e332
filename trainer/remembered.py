"""What a callback of the user's own keeps, as JSON: a state holds it, and a training that goes on gets it back."""

import base64
import collections
import random
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.undoing import is_of_users_class

LARGEST = 2**26
"""Bytes of arrays of a value that a state may hold."""
TAG = "lockstep"
"""Key of what JSON does not have: its kind."""
PLAIN = (bool, int, float, str, type(None))
COLLECTIONS = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
NUMBERS = "biufc"
"""Kinds of NumPy's types."""


class Unknown(Exception):
    """A value, or one in it, can't be part of a state."""


def encoded(value: Any, of_model: Collection[int] = ()) -> Any:
    """A value as JSON has it.

    Args:
        value: of a callback.
        of_model: the ids of variables that a state holds anyway.

    Raises:
        Unknown: it can't be encoded.
    """
    return _Encoder(of_model)(value)


class _Encoder:
    """Encodes a value whose arrays have at most `LARGEST` bytes."""

    def __init__(self, of_model: Collection[int]):
        self._of_model, self._left = of_model, LARGEST

    def __call__(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, list):
            return [self(one) for one in value]
        if isinstance(value, dict):
            return self._pairs(value)
        if type(value) in COLLECTIONS.values():
            # Alike on all workers.
            items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            kind, more = type(value).__name__, {"most": value.maxlen} if isinstance(value, collections.deque) else {}
            return {TAG: kind, "items": [self(one) for one in items], **more}
        return self._array(value) if isinstance(value, np.ndarray) else self._object(value)

    def _pairs(self, values: Mapping[Any, Any]) -> Any:
        if TAG not in values and all(isinstance(key, str) for key in values):
            return {key: self(one) for key, one in values.items()}
        return {TAG: "dict", "items": [[self(key), self(one)] for key, one in values.items()]}

    def _array(self, array: np.ndarray) -> Any:
        self._left -= array.nbytes
        if array.dtype.kind not in NUMBERS:
            raise Unknown(f"an array of {array.dtype}")
        if self._left < 0:
            raise Unknown(f"more than {LARGEST // 2**20} MiB")
        return {TAG: "array", "type": array.dtype.str, "shape": [*array.shape], "bytes": base64.b64encode(array.tobytes()).decode("ascii")}

    def _object(self, value: Any) -> Any:
        """What is put back inside of the object that is there."""
        if isinstance(value, tf.Tensor):
            return {TAG: "tensor", "value": self(value.numpy())}
        if isinstance(value, random.Random):
            return {TAG: "generator", "state": self(value.getstate())}
        if isinstance(value, np.random.Generator | np.random.RandomState):
            return {TAG: "generator", "state": self(_bits(value).state)}
        if (variables := _variables(value)) is not None:
            known = all(id(one) in self._of_model for one in variables)
            return {TAG: "variables", "values": [] if known else [self._array(np.asarray(one)) for one in variables]}
        if is_of_users_class(value) and not callable(value):
            return {TAG: "object", "values": self._pairs(vars(value))}
        raise Unknown(f"a {type(value).__name__}")


def _bits(generator: np.random.Generator | np.random.RandomState) -> Any:
    return generator.bit_generator if isinstance(generator, np.random.Generator) else generator._bit_generator


def _variables(value: Any) -> list[Any] | None:
    if isinstance(value, keras.Variable | tf.Variable):
        return [value]
    return list(value.variables) if isinstance(value, keras.Layer | keras.metrics.Metric | keras.optimizers.Optimizer) else None


def decoded(value: Any, now: Any = None) -> Any:
    """What `encoded` was given; `now`: what is in its place, and is changed where it is an object."""
    if isinstance(value, list):
        there = now if isinstance(now, list | tuple | collections.deque) and len(now) == len(value) else [None] * len(value)
        return [decoded(one, other) for one, other in zip(value, there, strict=True)]
    if not isinstance(value, dict):
        return value
    if TAG in value:
        return _tagged(value[TAG], value, now)
    return _values(value.items(), now)


def _values(items: Iterable[tuple[Any, Any]], now: Any) -> dict[Any, Any]:
    there = now if isinstance(now, dict) else {}
    return {key: decoded(one, there.get(key)) for key, one in items}


def _tagged(kind: str, value: Mapping[str, Any], now: Any) -> Any:
    result = now
    if kind == "dict":
        result = _values([(decoded(key), one) for key, one in value["items"]], now)
    elif kind == "deque":
        result = collections.deque(decoded(value["items"], now), value["most"])
    elif kind in COLLECTIONS:
        result = COLLECTIONS[kind](decoded(value["items"], now))
    elif kind == "array":
        result = np.frombuffer(base64.b64decode(value["bytes"]), np.dtype(value["type"])).reshape(value["shape"]).copy()
    elif kind == "tensor":
        result = tf.constant(decoded(value["value"]))
    else:
        _put_back(kind, value, now)
    return result


def _put_back(kind: str, value: Mapping[str, Any], now: Any) -> None:
    """Put a state into the object that is there, if it is one of that kind."""
    if kind == "generator" and isinstance(now, random.Random):
        now.setstate(decoded(value["state"]))
    elif kind == "generator" and isinstance(now, np.random.Generator | np.random.RandomState):
        _bits(now).state = decoded(value["state"])
    elif kind == "variables" and len(variables := _variables(now) or []) == len(value["values"]):
        for variable, one in zip(variables, value["values"], strict=True):
            variable.assign(decoded(one))
    elif kind == "object" and is_of_users_class(now):
        for name, one in decoded(value["values"], vars(now)).items():
            setattr(now, name, one)
