"""Identical reading of datasets on all workers, even with parallel calls in a dataset."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import config, op_def_registry

from trainer.common.patching import ProcessWide


def _set_determinism(on: bool) -> None:
    (config.enable_op_determinism if on else config.disable_op_determinism)()


IN_ORDER = ProcessWide(config.is_op_determinism_enabled, _set_determinism, True)
"""Switch that makes TensorFlow run a dataset's random or stateful calls one by one; it takes effect when an iterator is made."""
READING = ("ReadVariableOp", "VarHandleOp", "LookupTableFindV2", "LookupTableSizeV2", "HashTableV2")
"""Operations that only read, so they race only with operations that write."""


def _iterating(iterate: Callable[..., Any], dataset: tf.data.Dataset) -> Any:
    """Replacement of `tf.data.Dataset.__iter__`."""
    if _varies(dataset):
        try:
            with IN_ORDER:
                # Copied, because TensorFlow caches the optimized pipeline of a dataset that has been iterated.
                return iterate(dataset.with_options(tf.data.Options()))
        except tf.errors.InvalidArgumentError:
            # Random numbers without a seed, which have no order.
            pass
    return iterate(dataset)


HOOKS = ((tf.data.Dataset, "__iter__", _iterating),)
"""Replaced functions, in the form of `whole.HOOKS`."""


def _varies(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset's elements, or their order, depend on the order of its parallel calls."""
    return dataset.options().deterministic is False or any(map(_races, _steps(dataset)))


def _steps(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """A dataset and all datasets from which it is made."""
    waiting, seen = [dataset], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += one._inputs()


def _races(dataset: tf.data.Dataset) -> bool:
    # An interleave does not reveal whether its order counts.
    if getattr(dataset, "_deterministic", None) == "false" or "ParallelInterleave" in type(dataset).__name__:
        return True
    graphs = [function.function.graph.as_graph_def() for function in dataset._functions()]
    bodies = [nodes for graph in graphs for nodes in (graph.node, *(one.node_def for one in graph.library.function))]
    operations = {node.op for nodes in bodies for node in nodes}
    if not hasattr(dataset, "_num_parallel_calls") and not any("Parallel" in one for one in operations):
        return False
    stateful = set(filter(_is_stateful, operations))
    return bool(stateful.difference(READING))


def _is_stateful(operation: str) -> bool:
    """Return whether an operation may have side effects or varying results; datasets, although TensorFlow marks them so, do not count."""
    known = op_def_registry.get(operation)
    return known is not None and known.is_stateful and "Dataset" not in operation
