"""How a list of tensors is summed over all workers, in replica context: TensorFlow's collectives, or direct connections."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.direct import Direct

AllReduce = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]


def packed(options: Any) -> AllReduce:
    """One TensorFlow collective per type, over all its tensors concatenated (tensor fusion: Sergeev, Del Balso 2018, arXiv:1802.05799)."""

    def all_reduce(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        sums: dict[int, tf.Tensor] = {}
        for kind in dict.fromkeys(tensor.dtype for tensor in tensors):
            numbers = [number for number, tensor in enumerate(tensors) if tensor.dtype == kind]
            flat = tf.concat([tf.reshape(tensors[number], [-1]) for number in numbers], axis=0)
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, flat, options=options)
            sizes = [tensors[number].shape.num_elements() for number in numbers]
            for number, part in zip(numbers, tf.split(total, sizes), strict=True):
                sums[number] = tf.reshape(part, tensors[number].shape)
        return [sums[number] for number in range(len(tensors))]

    return all_reduce


def direct(connections: Direct) -> AllReduce:
    """Direct connections between each pair of workers; tensors stay on the host and are not copied."""

    def all_reduce(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return on_host(connections.all_reduce, tensors, [(tensor.shape, tensor.dtype) for tensor in tensors])

    return all_reduce


def on_host(
    function: Callable[[list[Any]], Sequence[Any]], tensors: Sequence[tf.Tensor], results: Sequence[tuple[Any, Any]]
) -> list[tf.Tensor]:
    """Call a Python function on a list of arrays inside a traced step; `results`: shape and type of each array that it returns."""
    arrays = tf.numpy_function(lambda *arrays: list(function(list(arrays))), list(tensors), [kind for _, kind in results])
    for tensor, (shape, _) in zip(arrays, results, strict=True):
        tensor.set_shape(shape)
    return list(arrays)
