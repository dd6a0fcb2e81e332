"""PowerSGD in TensorFlow's own ops, for gradients that are not in the host's memory (GPUs, several devices a worker)."""

from typing import Any

import numpy as np
import tensorflow as tf

from trainer.reduction import NEGLIGIBLE, Method, Setting


class OfEachDevice:
    """A variable of which every device of this worker has its own, saved and restored with one more axis in front."""

    def __init__(self, values: np.ndarray):
        self.variable = tf.Variable(
            values, trainable=False, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.NONE
        )
        self._parts = tf.distribute.get_strategy().experimental_local_results(self.variable)

    @property
    def shape(self) -> tuple[int, ...]:
        """Devices, then the variable's shape."""
        return (len(self._parts), *self.variable.shape)

    def numpy(self) -> np.ndarray:
        """The values on all devices of this worker."""
        return np.stack([part.numpy() for part in self._parts])

    def assign(self, values: np.ndarray) -> None:
        """Overwrite them."""
        for part, value in zip(self._parts, values, strict=True):
            part.assign(value)


class OpsPowerSGD:
    """The same method as `HostPowerSGD`; large gradients come out as matrices.

    Created under the strategy's scope; each device has a memory of its own.
    """

    def __init__(self, large: dict[int, tuple[int, int]], shapes: list[tuple[int, ...]], rank: int, setting: Setting):
        from trainer.reduction.powersgd import start

        self._large, self._shapes = large, shapes
        self._small = [number for number in range(len(shapes)) if number not in large]
        firsts = [start(number, min(rank, rows, columns), columns, setting.seed).T for number, (rows, columns) in large.items()]
        self._errors = [OfEachDevice(np.zeros(matrix, np.float32)) for matrix in large.values()]
        self._starts = [OfEachDevice(first) for first in firsts]
        self._firsts = [tf.constant(first) for first in firsts]

    def method(self) -> Method:
        """The three computations between and around the two sums."""
        return Method([self.project, self.reproject, self.multiply], [*self._errors, *self._starts])

    def project(self, values: list[Any]) -> tuple[list[Any], list[tf.Tensor]]:
        """From `[sums, *gradients]`: sends the sums, the small gradients and every P; every M stays."""
        sums, *gradients = values
        matrices = [
            tf.reshape(gradients[number], shape) + error.variable
            for (number, shape), error in zip(self._large.items(), self._errors, strict=True)
        ]
        lefts = [tf.matmul(matrix, begin.variable) for matrix, begin in zip(matrices, self._starts, strict=True)]
        return matrices, [sums, *(gradients[number] for number in self._small), *lefts]

    def reproject(self, values: list[Any]) -> tuple[list[Any], list[tf.Tensor]]:
        """Sends every Q; what this worker did not send becomes its error."""
        count = len(self._large)
        matrices, rest, lefts = values[:count], values[count:-count], values[-count:]
        lefts = [orthonormal(left) for left in lefts]
        rights = [tf.matmul(matrix, left, transpose_a=True) for matrix, left in zip(matrices, lefts, strict=True)]
        for error, matrix, left, right in zip(self._errors, matrices, lefts, rights, strict=True):
            error.variable.assign(matrix - tf.matmul(left, right, transpose_b=True))
        return [*rest, *lefts], rights

    def multiply(self, values: list[Any]) -> tuple[list[Any], list[tf.Tensor]]:
        """`[sums, *gradients]`."""
        count = len(self._large)
        sums, small, lefts, rights = values[0], values[1 : -2 * count], values[-2 * count : -count], values[-count:]
        gradients = dict(zip(self._small, small, strict=True))
        for number, begin, first, left, right in zip(self._large, self._starts, self._firsts, lefts, rights, strict=True):
            begin.variable.assign(unit(right, first))
            gradients[number] = tf.reshape(tf.matmul(left, right, transpose_b=True), self._shapes[number])
        return [sums, *(gradients[number] for number in range(len(self._shapes)))], []


def orthonormal(left: tf.Tensor) -> tf.Tensor:
    """Orthonormal columns of the same span; one that lies in the others' span becomes 0 (as `kernels.orthonormalise`)."""
    columns: list[tf.Tensor] = []
    for column in tf.unstack(tf.cast(left, tf.float64), axis=1):
        columns.append(_orthonormal_to(columns, column))
    return tf.cast(tf.stack(columns, axis=1), tf.float32)


def _orthonormal_to(others: list[tf.Tensor], column: tf.Tensor) -> tf.Tensor:
    rest = column
    for other in others * 2:
        rest -= other * tf.reduce_sum(other * rest)
    length = tf.norm(rest)
    return tf.where(length > NEGLIGIBLE * tf.norm(column), rest / tf.where(length > 0, length, 1), tf.zeros_like(rest))


def unit(right: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
    """Columns scaled to length 1; an empty one starts at random again."""
    length = tf.norm(right, axis=0, keepdims=True)
    return tf.where(length > 0, right / tf.where(length > 0, length, 1), first)
