"""Datasets that all workers read alike, whatever they do in parallel."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import config, op_def_registry

from trainer.common.patching import ProcessWide


def _set_determinism(on: bool) -> None:
    (config.enable_op_determinism if on else config.disable_op_determinism)()


IN_ORDER = ProcessWide(config.is_op_determinism_enabled, _set_determinism, True)
"""Lets TensorFlow run one by one what draws random numbers or keeps a state in a dataset, which it decides when it makes an iterator."""
READING = ("ReadVariableOp", "VarHandleOp", "LookupTableFindV2", "LookupTableSizeV2", "HashTableV2")
"""Operations that race with none that does not write."""


def _iterating(iterate: Callable[..., Any], dataset: tf.data.Dataset) -> Any:
    """`tf.data.Dataset.__iter__`."""
    if _varies(dataset):
        try:
            with IN_ORDER:
                # As another dataset: TensorFlow caches the optimized pipeline of one that has been iterated.
                return iterate(dataset.with_options(tf.data.Options()))
        except tf.errors.InvalidArgumentError:
            # Random numbers without a seed, which have no order.
            pass
    return iterate(dataset)


HOOKS = ((tf.data.Dataset, "__iter__", _iterating),)
"""As `whole.HOOKS`."""


def _varies(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset's elements, or their order, depend on which of its parallel calls comes first."""
    return dataset.options().deterministic is False or any(map(_races, _steps(dataset)))


def _steps(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """A dataset and those that it is made of."""
    waiting, seen = [dataset], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += one._inputs()


def _races(dataset: tf.data.Dataset) -> bool:
    # An interleave does not tell whether its order counts.
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
    """Return whether an operation may have side effects or varying results; datasets, which TensorFlow also marks so, don't count."""
    known = op_def_registry.get(operation)
    return known is not None and known.is_stateful and "Dataset" not in operation
