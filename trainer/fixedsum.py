"""Sums whose bits do not depend on the number of threads: workers of unlike hosts must come to the same."""

import tensorflow as tf

ROW = 1024
"""Elements that one thread adds up."""


def fixed_sum(tensor: tf.Tensor) -> tf.Tensor:
    """The sum of all elements, of the tensor's type."""
    return fixed_sums(tf.reshape(tensor, [1, -1]))[0]


def fixed_sums(tensor: tf.Tensor) -> tf.Tensor:
    """The sum of each row of `[rows, elements]`.

    TensorFlow cuts a sum over everything into as many parts as there are threads; one along short rows it does not.
    """
    rows, size = tensor.shape
    parts = -(-size // ROW)
    if parts > 1:
        tensor = tf.reshape(tf.pad(tensor, [[0, 0], [0, parts * ROW - size]]), [rows * parts, ROW])
    sums = tf.reduce_sum(tensor, axis=1)
    return fixed_sums(tf.reshape(sums, [rows, parts])) if parts > 1 else sums
