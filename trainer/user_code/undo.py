"""State of the user's Python code and of random generators, which is put back after a trial."""

import collections
import contextlib
import copy
import functools
import itertools
import operator
import random
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.layers.layer import Layer
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

MOST_BYTES, MOST_ITEMS = 2**26, 10**5
"""Limits of an array's bytes, and of a list whose items are looked into: larger ones are data, which no step changes."""
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
OBJECTS = (types.SimpleNamespace, threading.local)
"""Classes of Python's own whose objects have attributes of the user's."""
Restore = Callable[[], Any]
"""Puts the contents of a value back as they were, and returns the value."""


class State:
    """State of objects of the user's own, and of all random generators that are known, as they are when this is made.

    That is their attributes, what their functions use of a module and of a closure, and what is in lists, dicts and further objects.
    """

    def __init__(self, objects: Iterable[Any]):
        """Note them."""
        self._seen: dict[int, Any] = {}
        generators = random, np.random, getattr(context.context(), "_rng", None), stateful_random_ops.global_generator
        # It draws its seed from Python's when it is made.
        of_keras = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
        self._restores: list[Restore] = [functools.partial(global_state.set_global_attribute, GLOBAL_SEED_GENERATOR, of_keras)]
        self._restores += map(self._value, generators)
        self._restores += (restore for one in objects for restore in self._parts(one))

    def restore(self) -> None:
        """Put them back.

        Attributes in which variables or layers were made stay, and so do the others of their object, which may tell that they were.
        """
        for restore in self._restores:
            restore()

    def _parts(self, one: Any) -> Iterator[Restore]:
        """Restores of an object or a function: its attributes, and what its code uses."""
        self._seen[id(one)] = one
        if not isinstance(one, types.FunctionType):
            yield self._namespace(vars(one), lambda: _attributes(one))
        for function in _functions(one):
            self._seen[id(function)] = function
            yield self._namespace(function.__globals__, functools.partial(_used, function))
            yield from map(self._cell, function.__closure__ or ())

    def _namespace(self, values: dict[str, Any], names: Callable[[], Iterable[str]]) -> Restore:
        """Restore of values by name, of which the ones count that `names` returns."""
        before = {name: values[name] for name in names()}
        held = {name for name, value in before.items() if _holds_state(value)}
        restores = {name: self._value(value) for name, value in before.items()}
        for name in [name for name, value in before.items() if isinstance(value, types.GeneratorType)]:
            values[name], later = itertools.tee(before[name])
            before[name], restores[name] = values[name], functools.partial(copy.copy, later)

        def restore() -> None:
            now = {name: values[name] for name in names()}
            same = {name for name in held if now.get(name) is before[name]}
            if any(_holds_state(value) for name, value in now.items() if name not in same):
                return
            for name, value in restores.items():
                values[name] = value()
            for name in now.keys() - before.keys():
                del values[name]

        return restore

    def _cell(self, cell: Any) -> Restore:
        """Restore of a variable of a closure."""
        if cell == types.CellType():
            return _nothing
        before = self._value(cell.cell_contents)
        return lambda: setattr(cell, "cell_contents", before())

    def _value(self, value: Any) -> Restore:
        """Restore of any value; one that can't be read, or is not known to have contents, stays as it is."""
        if id(value) not in self._seen and not _holds_state(value):
            self._seen[id(value)] = value
            with contextlib.suppress(Exception):
                return self._contents(value) or functools.partial(_same, value)
        return functools.partial(_same, value)

    def _contents(self, value: Any) -> Restore | None:
        if restore := _of_generator(value):
            return functools.partial(_same, value, restore)
        if isinstance(value, list | dict | set | collections.deque):
            return self._items(value)
        if isinstance(value, np.ndarray) and value.nbytes <= MOST_BYTES and value.flags.writeable:
            return functools.partial(_same, value, functools.partial(np.copyto, value, value.copy()))
        if isinstance(value, types.FunctionType) or is_of_users_class(value):
            parts = [*self._parts(value)]
            return functools.partial(_same, value, *parts)
        # Such as a count of itertools.
        return functools.partial(copy.copy, copy.copy(value)) if isinstance(value, Iterator) else None

    def _items(self, value: Any) -> Restore:
        """Restore of a list, dict, set or deque, of which Keras' own that track layers are subclasses."""
        keys, items = (list(value), list(value.values())) if isinstance(value, dict) else (None, list(value))
        restores = [*map(self._value, items)] if len(items) <= MOST_ITEMS else [functools.partial(_same, one) for one in items]

        def restore() -> Any:
            before, now = [one() for one in restores], [*(value.values() if isinstance(value, dict) else value)]
            # TensorFlow takes a dict that was cleared for one that was changed behind its back.
            if len(now) == len(before) and all(map(operator.is_, now, before)) and (keys is None or keys == list(value)):
                return value
            value.clear()
            if isinstance(value, list | collections.deque):
                value.extend(before)
            else:
                value.update(before if keys is None else dict(zip(keys, before, strict=True)))
            return value

        return restore


@contextlib.contextmanager
def undone(objects: Iterable[Any]) -> Iterator[None]:
    """Undo what changes of the `State` of objects."""
    before = State(objects)
    try:
        yield
    finally:
        before.restore()


REPLACED = ("call", "compute_mask")
"""Methods of a layer that a trial replaces for a while."""
Place = tuple[Any, Any]
"""A dict or list, and a key of it."""


def places(one: Any) -> Iterator[Place]:
    """Where an object keeps what is no list, dict or object of the user's own, but may be in one."""
    seen = set[int]()
    yield from _places(vars(one), _attributes(one), seen)
    for function in _functions(one):
        yield from _places(function.__globals__, _used(function), seen)


def _places(values: Any, keys: Iterable[Any], seen: set[int]) -> Iterator[Place]:
    for key in keys:
        inner = value = values[key]
        if is_of_users_class(value) and not _holds_state(value):
            inner = vars(value)
        if not isinstance(inner, dict | list):
            yield values, key
        elif id(inner) not in seen and len(inner) <= MOST_ITEMS:
            seen.add(id(inner))
            yield from _places(inner, list(inner) if isinstance(inner, dict) else range(len(inner)), seen)


def is_users(one: Any) -> bool:
    """Return whether an object's class is not one of Keras' own."""
    return type(one).__module__.partition(".")[0] != "keras"


def _attributes(one: Any) -> dict[str, Any]:
    """Attributes of a layer, a metric or a loss that its own code has set, by name."""
    # TensorFlow's own begin so.
    return {name: value for name, value in vars(one).items() if name not in _by_keras() and not name.startswith("_self_")}


@functools.cache
def _by_keras() -> frozenset[str]:
    """Attributes of layers, models, metrics and losses that are not the user's."""
    kinds = (keras.Model(name="any"), Layer(name="any"), keras.metrics.Metric(name="any"), keras.losses.Loss(name="any"))
    return frozenset(name for one in kinds for name in vars(one)) | {"_metrics_lock", *REPLACED}


def _of_generator(value: Any) -> Callable[[], Any] | None:
    """Function that puts back a random generator, a table of TensorFlow's or an iterator over a dataset; None for anything else."""
    restore: Callable[[], Any] | None = None
    if value is np.random or isinstance(value, np.random.RandomState):
        restore = functools.partial(value.set_state, value.get_state())
    elif value is random or isinstance(value, random.Random):
        restore = functools.partial(value.setstate, value.getstate())
    elif isinstance(value, np.random.Generator):
        restore = functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    elif isinstance(value, tf.random.Generator):
        # An assignment would be left out in a trial.
        restore = functools.partial(tf.raw_ops.AssignVariableOp, resource=value.state.handle, value=tf.identity(value.state))
    elif isinstance(value, tf.lookup.experimental.MutableHashTable):
        restore = functools.partial(_refill, value, *value.export())
    elif isinstance(value, OwnedIterator):
        place = tf.raw_ops.SerializeIterator(resource_handle=value._iterator_resource)
        restore = functools.partial(tf.raw_ops.DeserializeIterator, resource_handle=value._iterator_resource, serialized=place)
    return restore


def _refill(table: Any, keys: tf.Tensor, values: tf.Tensor) -> None:
    table.remove(table.export()[0])
    table.insert(keys, values)


def _same(value: Any, *restores: Callable[[], Any]) -> Any:
    for restore in restores:
        restore()
    return value


def _nothing() -> None:
    pass


def _functions(one: Any) -> Iterator[types.FunctionType]:
    """A function, or those of an object's class, of the user's own."""
    if isinstance(one, types.FunctionType):
        every: list[Any] = [one]
    else:
        every = [each for kind in type(one).__mro__ if _is_users_module(kind.__module__) for each in vars(kind).values()]
    for each in every:
        # A property, a class method, or a function of TensorFlow's.
        inner = next((getattr(each, name) for name in ("fget", "__func__", "python_function") if getattr(each, name, None)), each)
        if isinstance(inner, types.FunctionType) and _is_users_module(inner.__module__):
            yield inner


def _used(function: types.FunctionType) -> list[str]:
    """The variables of its module that a function uses, or a function in it."""
    codes = [function.__code__]
    for code in codes:
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    names = {name for code in codes for name in code.co_names if name in function.__globals__}
    return sorted(name for name in names if not isinstance(function.__globals__[name], types.ModuleType | type))


def is_of_users_class(value: Any) -> bool:
    """Return whether a value's class is of no library, and not ours."""
    return isinstance(value, OBJECTS) or (hasattr(value, "__dict__") and _is_users_module(type(value).__module__))


def _is_users_module(name: str) -> bool:
    """Return whether a module is of no library, and not ours."""
    file = getattr(sys.modules.get(name), "__file__", None)
    known = name in sys.builtin_module_names or name.partition(".")[0] == "trainer" or name not in sys.modules
    return not known and (file is None or not file.startswith(LIBRARIES))


def _holds_state(value: Any, inside: tuple[int, ...] = ()) -> bool:
    """Return whether a value is or has a layer, a metric or a variable; `inside`: its containers."""
    kinds = (keras.Layer, keras.metrics.Metric, keras.Variable, tf.Variable, keras.random.SeedGenerator)
    if not isinstance(value, list | tuple | set | dict):
        return isinstance(value, kinds)
    if id(value) in inside or len(value) > MOST_ITEMS:
        return False
    return any(_holds_state(one, (*inside, id(value))) for one in (value.values() if isinstance(value, dict) else value))
