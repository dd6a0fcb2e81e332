"""PowerSGD in TensorFlow ops, for gradients that are not in host memory (GPUs, several devices per worker)."""

from typing import Any

import numpy as np
import tensorflow as tf

from trainer.reduction.fixed_sum import fixed_sum, fixed_sums
from trainer.reduction.low_rank import FactorSizes
from trainer.reduction.method import NEGLIGIBLE, Method, Setting


class _OfEachDevice:
    """A variable with a separate value on each device of this worker, saved and restored with an extra leading axis."""

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
    """As `HostPowerSGD`, with a memory per device and gradients multiplied out; create under the strategy's scope."""

    def __init__(self, large: dict[int, FactorSizes], shapes: list[tuple[int, ...]], setting: Setting):
        self._large, self._shapes = large, shapes
        self._small = [number for number in range(len(shapes)) if number not in large]
        firsts = [sizes.start(number, setting.seed).T for number, sizes in large.items()]
        self._errors = [_OfEachDevice(np.zeros((sizes.rows, sizes.columns), np.float32)) for sizes in large.values()]
        self._starts = [_OfEachDevice(first) for first in firsts]
        self._recycled = [_OfEachDevice(np.zeros((sizes.rows, sizes.recycled), np.float32)) for sizes in large.values()]
        self._firsts = [tf.constant(first) for first in firsts]

    def method(self) -> Method:
        """The three computations between and around the two sums."""
        return Method([self.project, self.reproject, self.multiply], [*self._errors, *self._starts, *self._recycled])

    def project(self, values: list[Any]) -> tuple[list[Any], list[tf.Tensor]]:
        """From `[sums, *gradients]`: sends the sums, the small gradients and every P; every M stays."""
        sums, *gradients = values
        matrices = [
            tf.reshape(gradients[number], (sizes.rows, sizes.columns)) + error.variable
            for (number, sizes), error in zip(self._large.items(), self._errors, strict=True)
        ]
        lefts = [tf.matmul(matrix, begin.variable) for matrix, begin in zip(matrices, self._starts, strict=True)]
        return matrices, [sums, *(gradients[number] for number in self._small), *lefts]

    def reproject(self, values: list[Any]) -> tuple[list[Any], list[tf.Tensor]]:
        """Sends every Q; what this worker did not send becomes its error."""
        count = len(self._large)
        matrices, rest, lefts = values[:count], values[count:-count], values[-count:]
        lefts = [_orthonormal(left, kept.variable) for left, kept in zip(lefts, self._recycled, strict=True)]
        rights = [tf.matmul(matrix, left, transpose_a=True) for matrix, left in zip(matrices, lefts, strict=True)]
        for error, matrix, left, right in zip(self._errors, matrices, lefts, rights, strict=True):
            error.variable.assign(matrix - tf.matmul(left, right, transpose_b=True))
        return [*rest, *lefts], rights

    def multiply(self, values: list[Any]) -> tuple[list[Any], list[tf.Tensor]]:
        """Returns `[sums, *gradients]`."""
        count = len(self._large)
        sums, small, lefts, rights = values[0], values[1 : -2 * count], values[-2 * count : -count], values[-count:]
        gradients = dict(zip(self._small, small, strict=True))
        remembered = zip(self._large, self._recycled, self._starts, self._firsts, strict=True)
        for (number, kept, begin, first), left, right in zip(remembered, lefts, rights, strict=True):
            gradients[number] = tf.reshape(tf.matmul(left, right, transpose_b=True), self._shapes[number])
            by = _principal(right) if kept.variable.shape[1] else tf.eye(right.shape[1])
            kept.variable.assign(tf.matmul(left, by)[:, : kept.variable.shape[1]])
            begin.variable.assign(_unit(tf.matmul(right, by), first))
        return [sums, *(gradients[number] for number in range(len(self._shapes)))], []


def _orthonormal(left: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
    """The columns of `kept`, then those of `left`, as `kernels.orthonormalise`; one that adds nothing to the span becomes 0."""
    columns: list[tf.Tensor] = tf.unstack(tf.cast(kept, tf.float64), axis=1)
    for column in tf.unstack(tf.cast(left, tf.float64), axis=1):
        columns.append(_orthonormal_to(columns, column))
    return tf.cast(tf.stack(columns, axis=1), tf.float32)


def _orthonormal_to(others: list[tf.Tensor], column: tf.Tensor) -> tf.Tensor:
    rest = column
    for other in others * 2:
        rest -= other * fixed_sum(other * rest)
    length = _length(rest)
    return tf.where(length > NEGLIGIBLE * _length(column), rest / tf.where(length > 0, length, 1), tf.zeros_like(rest))


def _length(tensor: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(fixed_sum(tf.square(tensor)))


def _principal(right: tf.Tensor) -> tf.Tensor:
    """Orthogonal matrix that makes the columns of `right` orthogonal, the longest first (as `kernels.principal`, transposed)."""
    columns = tf.transpose(tf.cast(right, tf.float64))
    _, vectors = tf.linalg.eigh(tf.stack([fixed_sums(columns * column) for column in tf.unstack(columns)]))
    return tf.cast(tf.reverse(vectors, [1]), tf.float32)


def _unit(right: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
    """The last columns, as many as `first` has, scaled to length 1; an empty column starts at random again."""
    last = right[:, right.shape[1] - first.shape[1] :]
    length = tf.sqrt(fixed_sums(tf.transpose(tf.square(last))))[tf.newaxis]
    some = length > NEGLIGIBLE * _length(right)
    return tf.where(some, last / tf.where(some, length, 1), first)
