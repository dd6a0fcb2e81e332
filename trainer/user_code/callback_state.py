"""State of a callback of the user's own as JSON: part of a training state, and given back when the training goes on."""

import base64
import collections
import math
import random
import sys
from collections.abc import Collection, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.user_code.undo import is_of_users_class

LARGEST = 2**26
"""Bytes of arrays that the callbacks of a state may hold."""
TAG = "lockstep"
"""Key of what JSON does not have: its kind."""
PLAIN = (bool, int, float, str, type(None))
COLLECTIONS = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
DICTS = {"dict": dict, "Counter": collections.Counter, "OrderedDict": collections.OrderedDict}
NUMBERS = "biufc"
"""Kinds of NumPy's types."""
NOT_THERE = "there is no such object where a training goes on"
WORDS = 624
"""Words in the state of a Mersenne Twister; NumPy does not check a position among them."""


class Unknown(Exception):
    """A value, or one in it, can't be part of a state, or is not what it was."""


class Encoder:
    """Writes values as JSON has them; their arrays have at most `LARGEST` bytes together."""

    def __init__(self, of_model: Collection[int] = ()):
        """`of_model`: the ids of variables that a state holds anyway."""
        self._of_model, self._left = of_model, LARGEST

    def __call__(self, value: Any) -> Any:
        """A value of a callback; Unknown, if it can't be written."""
        left = self._left
        try:
            return self._any(value)
        except BaseException:
            self._left = left
            raise

    def _any(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, list):
            return [self._any(one) for one in value]
        if isinstance(value, dict):
            return self._pairs(value, type(value).__name__)
        if type(value) in COLLECTIONS.values():
            # Alike on all workers.
            items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            kind, more = type(value).__name__, {"most": value.maxlen} if isinstance(value, collections.deque) else {}
            return {TAG: kind, "items": [self._any(one) for one in items], **more}
        return self._array(value) if isinstance(value, np.ndarray) else self._object(value)

    def _pairs(self, values: Mapping[Any, Any], kind: str) -> Any:
        if kind == "dict" and TAG not in values and all(isinstance(key, str) for key in values):
            return {key: self._any(one) for key, one in values.items()}
        return {TAG: "pairs", "kind": kind, "items": [[self._any(key), self._any(one)] for key, one in values.items()]}

    def _array(self, array: np.ndarray) -> Any:
        if array.dtype.kind not in NUMBERS:
            raise Unknown(f"an array of {array.dtype}")
        self._check(array.nbytes)
        self._left -= array.nbytes
        return {TAG: "array", "type": array.dtype.str, "shape": [*array.shape], "bytes": base64.b64encode(array.tobytes()).decode("ascii")}

    def _check(self, size: int) -> None:
        if size > self._left:
            raise Unknown(f"more than {LARGEST // 2**20} MiB")

    def _object(self, value: Any) -> Any:
        if isinstance(value, tf.Tensor):
            return {TAG: "tensor", "value": self._any(value.numpy())}
        if isinstance(value, random.Random):
            return {TAG: "generator", "state": self._any(value.getstate())}
        if isinstance(value, np.random.RandomState):
            return {TAG: "generator", "state": self._any(value.get_state(legacy=False))}
        if isinstance(value, np.random.Generator):
            return {TAG: "generator", "state": self._any(value.bit_generator.state)}
        if (variables := _variables(value)) is not None:
            known = all(id(one) in self._of_model for one in variables)
            self._check(0 if known else sum(math.prod(one.shape) for one in variables))
            values = [] if known else [self._array(np.asarray(one)) for one in variables]
            return {TAG: "variables", "known": known, "kind": type(value).__name__, "values": values}
        if is_of_users_class(value):
            kind = type(value)
            return {TAG: "object", "class": [kind.__module__, kind.__qualname__], "values": self._pairs(vars(value), "dict")}
        raise Unknown(f"a {type(value).__name__}")


def _variables(value: Any) -> list[Any] | None:
    if isinstance(value, keras.Variable | tf.Variable):
        return [value]
    if isinstance(value, keras.random.SeedGenerator | tf.random.Generator):
        return [value.state]
    return list(value.variables) if isinstance(value, keras.Layer | keras.metrics.Metric | keras.optimizers.Optimizer) else None


def decoded(value: Any, now: Any = None) -> Any:
    """Restore the value that an `Encoder` was given.

    Args:
        value: as JSON has it.
        now: object in the value's place; an object of the same kind is changed, and returned.

    Raises:
        Unknown: nothing in its place fits.
    """
    if isinstance(value, list):
        there = now if isinstance(now, list | tuple | collections.deque) and len(now) == len(value) else [None] * len(value)
        items = [decoded(one, other) for one, other in zip(value, there, strict=True)]
        return _into(now, items) if isinstance(now, list) else items
    if not isinstance(value, dict):
        return value
    if TAG in value:
        return _tagged(value[TAG], value, now)
    return _pairs("dict", value.items(), now)


def _into(now: list[Any], items: list[Any]) -> list[Any]:
    now[:] = items
    return now


def _pairs(kind: str, items: Any, now: Any) -> dict[Any, Any]:
    fits = isinstance(now, dict) and type(now).__name__ == kind
    there = now if fits else {}
    pairs = {key: decoded(one, there.get(key)) for key, one in items}
    if fits:
        now.clear()
        now.update(pairs)
        return now
    if kind not in DICTS:
        raise Unknown(NOT_THERE)
    return DICTS[kind](pairs)


def _tagged(kind: str, value: Mapping[str, Any], now: Any) -> Any:
    if kind == "pairs":
        result: Any = _pairs(value["kind"], [(decoded(key), one) for key, one in value["items"]], now)
    elif kind == "deque":
        result = collections.deque(decoded(value["items"]), value["most"])
    elif kind in COLLECTIONS:
        result = COLLECTIONS[kind](decoded(value["items"], now if isinstance(now, tuple) else None))
    elif kind == "array":
        result = np.frombuffer(base64.b64decode(value["bytes"]), np.dtype(value["type"])).reshape(value["shape"]).copy()
        if isinstance(now, np.ndarray) and (now.shape, now.dtype, now.flags.writeable) == (result.shape, result.dtype, True):
            np.copyto(now, result)
            result = now
    elif kind == "tensor":
        result = tf.constant(decoded(value["value"]))
    elif kind == "generator":
        result = _generator(decoded(value["state"]), now)
    elif kind == "variables":
        result = _of_variables(value, now)
    else:
        result = _of_class(value, now)
    return result


def _generator(state: Any, now: Any) -> Any:
    if isinstance(state, dict) and not 0 <= state["state"].get("pos", 0) <= WORDS:
        raise Unknown("no state of a random generator")
    if isinstance(now, random.Random):
        now.setstate(state)
    elif isinstance(now, np.random.RandomState):
        now.set_state(state)
    elif isinstance(now, np.random.Generator):
        now.bit_generator.state = state
    else:
        raise Unknown(NOT_THERE)
    return now


def _of_variables(value: Mapping[str, Any], now: Any) -> Any:
    values, variables = [decoded(one) for one in value["values"]], _variables(now)
    if value["known"]:
        return now
    if variables is None and value["kind"] in ("ResourceVariable", "Variable") and len(values) == 1:
        return (tf.Variable if value["kind"] == "ResourceVariable" else keras.Variable)(values[0], trainable=False)
    if variables is None or [tuple(one.shape) for one in variables] != [one.shape for one in values]:
        raise Unknown(NOT_THERE)
    for variable, one in zip(variables, values, strict=True):
        variable.assign(one)
    return now


def _of_class(value: Mapping[str, Any], now: Any) -> Any:
    """An object of the user's own, the one that is there, or made without its own `__init__`."""
    module, name = value["class"]
    kind = sys.modules.get(module)
    for part in name.split("."):
        kind = getattr(kind, part, None)
    if not isinstance(kind, type) or type(now) is not kind:
        now = object.__new__(kind) if isinstance(kind, type) else None
    if not is_of_users_class(now):
        raise Unknown(NOT_THERE)
    vars(now).update(decoded(value["values"], dict(vars(now))))
    return now
