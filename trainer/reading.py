"""Datasets that all workers read alike, whatever they do in parallel."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import config, op_def_registry

from trainer.replacing import Setting


def _set_determinism(on: bool) -> None:
    (config.enable_op_determinism if on else config.disable_op_determinism)()


IN_ORDER = Setting(config.is_op_determinism_enabled, _set_determinism, True)
"""Lets TensorFlow run one by one what draws random numbers or keeps a state in a dataset, which it decides when it makes an iterator."""


def _iterating(iterate: Callable[..., Any]) -> Callable[..., Any]:
    """`tf.data.Dataset.__iter__`."""

    @functools.wraps(iterate)
    def iterated(dataset: tf.data.Dataset) -> Any:
        if not varies(dataset):
            return iterate(dataset)
        with IN_ORDER:
            return iterate(dataset)

    return iterated


HOOKS = ((tf.data.Dataset, "__iter__", _iterating),)
"""As `whole.HOOKS`."""


def varies(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset's elements, or their order, depend on which of its parallel calls comes first."""
    return dataset.options().deterministic is False or any(map(_races, _steps(dataset)))


def _steps(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """A dataset and those that it is made of."""
    yield dataset
    for one in dataset._inputs():
        yield from _steps(one)


def _races(dataset: tf.data.Dataset) -> bool:
    # An interleave does not tell whether its order counts.
    if getattr(dataset, "_deterministic", None) == "false" or "ParallelInterleave" in type(dataset).__name__:
        return True
    graphs = [function.function.graph.as_graph_def() for function in dataset._functions()]
    bodies = [nodes for graph in graphs for nodes in (graph.node, *(one.node_def for one in graph.library.function))]
    operations = {node.op for nodes in bodies for node in nodes}
    parallel = hasattr(dataset, "_num_parallel_calls") or any("Parallel" in one for one in operations)
    return parallel and any(map(_keeps_state, operations))


def _keeps_state(operation: str) -> bool:
    """Whether an operation draws random numbers, reads or changes a variable, or calls Python; TensorFlow calls datasets stateful, too."""
    known = op_def_registry.get(operation)
    return known is not None and known.is_stateful and "Dataset" not in operation
