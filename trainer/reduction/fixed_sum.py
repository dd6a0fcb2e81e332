"""Sums whose bits do not depend on the number of threads: workers on different hosts must get the same result."""

import tensorflow as tf

ROW = 1024
"""Elements that one thread adds up."""


def fixed_sum(tensor: tf.Tensor) -> tf.Tensor:
    """The sum of all elements, of the tensor's type."""
    return fixed_sums(tf.reshape(tensor, [1, -1]))[0]


def fixed_sums(tensor: tf.Tensor) -> tf.Tensor:
    """The sum of each row of `[rows, elements]`; TensorFlow splits a sum into one part per thread, but not along short rows."""
    rows, size = tensor.shape
    parts = -(-size // ROW)
    if parts > 1:
        tensor = tf.reshape(tf.pad(tensor, [[0, 0], [0, parts * ROW - size]]), [rows * parts, ROW])
    sums = tf.reduce_sum(tensor, axis=1)
    return fixed_sums(tf.reshape(sums, [rows, parts])) if parts > 1 else sums
