"""Keras models made under MultiWorkerMirroredStrategy, taken out of it.

Keras 3 can't `fit` such a model on several workers: it passes a PerReplica to TensorFlow where a tensor must be (keras#20585). Here the
model becomes a plain one, whose `fit` is `trainer.keras_fit.distribute`'s. The strategy itself stays as it is, for custom training loops.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.framework import ops

from trainer.common.patching import replaced

_thread = threading.local()
"""`left`: the context of a strategy that this thread has left. Workers may be threads."""


def multi_worker(model: keras.Model) -> bool:
    """Return whether a model was made under the scope of a strategy of several workers."""
    strategy = model._distribute_strategy
    return strategy is not None and bool(strategy.extended._in_multi_worker_mode()) and strategy.num_replicas_in_sync > 1


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """TensorFlow as it is without a strategy, even within the scope of one."""
    if not tf.distribute.has_strategy():
        yield
        return
    graph, left = ops.get_default_graph(), distribute_lib._get_per_thread_mode()
    creators, graph._variable_creator_stack = graph._variable_creator_stack, []
    try:
        with _mode(distribute_lib._get_default_replica_mode()), replaced(_thread, "left", left):
            yield
    finally:
        graph._variable_creator_stack = creators


@contextlib.contextmanager
def inside() -> Iterator[Any]:
    """The replica context of a strategy, also where `outside` has left it."""
    left = getattr(_thread, "left", None)
    with contextlib.nullcontext() if left is None else _mode(left):
        yield tf.distribute.get_replica_context()


@contextlib.contextmanager
def _mode(mode: Any) -> Iterator[None]:
    distribute_lib._push_per_thread_mode(mode)
    try:
        yield
    finally:
        distribute_lib._pop_per_thread_mode()


def take_out(model: keras.Model) -> None:
    """Replace a model's mirrored variables by this worker's own, and let it and its optimizer forget the strategy."""
    optimizer = model.optimizer
    optimizers = [one for one in (optimizer, getattr(optimizer, "inner_optimizer", None)) if isinstance(one, TFOptimizer)]
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    for variable in [*model.variables, *metrics, *(variable for one in optimizers for variable in one.variables)]:
        variable._value = _own(variable._value)
    with outside():
        for one in optimizers:
            one._distribution_strategy = tf.distribute.get_strategy()
    model._distribute_strategy = None
    model.train_function = model.test_function = model.predict_function = None


def _own(value: Any) -> Any:
    """A mirrored variable's only local one, which forgets that it was part of another; a plain variable as it is."""
    if not isinstance(value, tf.distribute.DistributedValues):
        return value
    own = value._primary
    for owner in (own, own.handle):
        with contextlib.suppress(AttributeError):
            del owner._distributed_container
    return own
