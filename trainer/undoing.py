"""What Python code of the user's own keeps: attributes, and the states of random generators, which are put back where it is only tried."""

import contextlib
import functools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.layers.layer import Layer
from tensorflow.python.eager import context

_Kept = tuple[Any, Callable[[], None], bool]
"""A value, what puts its contents back, and whether it is or has a layer, a metric or a variable."""


class State:
    """Attributes of objects, lists and dicts in them, and all random generators that are known, as they are when this is made."""

    def __init__(self, objects: Iterable[Any]):
        """Note them."""
        self._generators = [_state(one) for one in (random, np.random, getattr(context.context(), "_rng", None))]
        self._objects = [(one, {name: _state(value) for name, value in attributes(one).items()}) for one in objects]

    def restore(self) -> None:
        """Put them back.

        Attributes in which variables or layers were made stay, and so do the others of their object, which may tell that they were.
        """
        for _, restore, _ in self._generators:
            restore()
        for one, before in self._objects:
            now = attributes(one)
            changed = {name for name in {*now, *before} if name not in before or now.get(name) is not before[name][0]}
            held = {name for name, (*_, holds) in before.items() if holds} - changed
            if any(_holds_state(value) for name, value in now.items() if name not in held):
                continue
            for name, (value, restore, _) in before.items():
                if name in changed:
                    setattr(one, name, value)
                restore()
            for name in changed - before.keys():
                delattr(one, name)


@contextlib.contextmanager
def undone(objects: Iterable[Any]) -> Iterator[None]:
    """Undo what changes of the `State` of objects."""
    before = State(objects)
    try:
        yield
    finally:
        before.restore()


def is_users(one: Any) -> bool:
    """Whether an object's class is not one of Keras' own."""
    return type(one).__module__.partition(".")[0] != "keras"


def attributes(one: Any) -> dict[str, Any]:
    """Those of a layer, a metric or a loss that its own code has set, by name."""
    # TensorFlow's own begin so.
    return {name: value for name, value in vars(one).items() if name not in _by_keras() and not name.startswith("_self_")}


@functools.cache
def _by_keras() -> frozenset[str]:
    """Attributes of layers, models, metrics and losses that are not the user's."""
    kinds = (keras.Model(name="any"), Layer(name="any"), keras.metrics.Metric(name="any"), keras.losses.Loss(name="any"))
    return frozenset(name for one in kinds for name in vars(one)) | {"_metrics_lock"}


def _state(value: Any) -> _Kept:
    holds = _holds_state(value)
    return value, _nothing if holds else _restoring(value), holds


def _restoring(value: Any) -> Callable[[], None]:
    """What puts the contents of a value back, if it has any that are known."""
    if value is np.random:
        return functools.partial(np.random.set_state, np.random.get_state())
    if value is random or isinstance(value, random.Random):
        return functools.partial(value.setstate, value.getstate())
    if isinstance(value, np.random.Generator):
        return functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return functools.partial(value.set_state, value.get_state())
    if isinstance(value, list | dict | set):
        return functools.partial(_refill, value, _type_of(value)(value))
    return _nothing


def _type_of(value: Any) -> Any:
    """The plain kind of a list, dict or set, of which Keras' own that track layers are subclasses."""
    return next(kind for kind in (list, dict, set) if isinstance(value, kind))


def _refill(value: Any, contents: Any) -> None:
    value.clear()
    (value.extend if isinstance(value, list) else value.update)(contents)


def _nothing() -> None:
    pass


def _holds_state(value: Any) -> bool:
    """Whether a value is or has a layer, a metric or a variable."""
    kinds = (keras.Layer, keras.metrics.Metric, keras.Variable, tf.Variable, keras.random.SeedGenerator)
    if isinstance(value, list | tuple | set | dict):
        return any(map(_holds_state, value.values() if isinstance(value, dict) else value))
    return isinstance(value, kinds)
