"""How workers exchange tensors: over direct connections, by TensorFlow's own collectives, or not at all, as there is only one."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from trainer.network import tf_strategy

AllReduce = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]


class Workers(Protocol):
    """Workers of which this is one; all call the same methods in the same order."""

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""

    @property
    def workers(self) -> int:
        """How many there are."""


class Arrays(Workers, Protocol):
    """Workers that exchange arrays: `direct.Direct`, or threads of one process."""

    def all_reduce(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The sum of each array over all workers."""

    def all_gather(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each array's rows of all workers, in order of rank."""


class Group(Workers, Protocol):
    """Workers that exchange tensors in a traced step, or eagerly."""

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sum of each tensor over all workers, the same bits on all of them; shapes are equal everywhere."""

    def concatenated(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The rows of each tensor of all workers, in order of rank; only their number may differ."""


class Alone:
    """One worker."""

    rank, workers = 0, 1

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `Group`."""
        return [tf.identity(tensor) for tensor in tensors]

    def concatenated(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `Group`."""
        return self.sum(tensors)


class Collectives:
    """TensorFlow's collectives, in a strategy's replica context."""

    def __init__(self, rank: int, workers: int, options: Any):
        """`options`: TensorFlow's CommunicationOptions."""
        self.rank, self.workers, self._options = rank, workers, options

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `Group`: one per type, over all its tensors concatenated (tensor fusion: Sergeev, Del Balso 2018, arXiv:1802.05799)."""
        sums: dict[int, tf.Tensor] = {}
        for kind in dict.fromkeys(tensor.dtype for tensor in tensors):
            numbers = [number for number, tensor in enumerate(tensors) if tensor.dtype == kind]
            flat = tf.concat([tf.reshape(tensors[number], [-1]) for number in numbers], axis=0)
            with tf_strategy.inside() as context:
                total = context.all_reduce(tf.distribute.ReduceOp.SUM, flat, options=self._options)
            sizes = [tf.size(tensors[number]) for number in numbers]
            for number, part in zip(numbers, tf.split(total, sizes, num=len(sizes)), strict=True):
                sums[number] = tf.ensure_shape(tf.reshape(part, tf.shape(tensors[number])), tensors[number].shape)
        return [sums[number] for number in range(len(tensors))]

    def concatenated(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `Group`."""
        with tf_strategy.inside() as context:
            rows = [context.all_gather(tf.identity(tensor), axis=0, options=self._options) for tensor in tensors]
        # TensorFlow forgets the shape of a row where their number is not known, and a loss then takes y for another shape than the output.
        return [tf.ensure_shape(every, (None, *tensor.shape[1:])) for every, tensor in zip(rows, tensors, strict=True)]


class OnHost:
    """The exchange of arrays: tensors stay on the host and are not copied."""

    def __init__(self, arrays: Arrays):
        """Use these workers."""
        self._arrays = arrays

    @property
    def rank(self) -> int:
        """See `Group`."""
        return self._arrays.rank

    @property
    def workers(self) -> int:
        """See `Group`."""
        return self._arrays.workers

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `Group`."""
        return on_host(self._arrays.all_reduce, tensors, [(tensor.shape, tensor.dtype) for tensor in tensors])

    def concatenated(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `Group`."""
        return on_host(self._arrays.all_gather, tensors, [((None, *tensor.shape[1:]), tensor.dtype) for tensor in tensors])


def on_host(
    function: Callable[[list[Any]], Sequence[Any]], tensors: Sequence[tf.Tensor], results: Sequence[tuple[Any, Any]]
) -> list[tf.Tensor]:
    """Call a Python function on a list of arrays inside a traced step; `results`: shape and type of each array that it returns."""
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(array) for array in function([tensor.numpy() for tensor in tensors])]
    arrays = tf.numpy_function(lambda *arrays: list(function(list(arrays))), list(tensors), [kind for _, kind in results])
    for tensor, (shape, _) in zip(arrays, results, strict=True):
        tensor.set_shape(shape)
    return list(arrays)
