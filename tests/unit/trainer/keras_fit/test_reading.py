"""Datasets that are read alike by all workers."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.keras_fit import dataset_reading

COUNT = tf.data.Dataset.range(500)
WEIGHT = tf.Variable(2.0)
FLIP = keras.layers.RandomFlip(seed=1)


def drawn(_):
    return tf.random.uniform([])


def python(x):
    return tf.numpy_function(lambda one: one * random.random(), [tf.cast(x, tf.float64)], tf.float64)


def flipped(_):
    return tf.reduce_sum(FLIP(tf.reshape(tf.range(16.0), [1, 4, 4, 1]), training=True) * tf.reshape(tf.range(16.0), [1, 4, 4, 1]))


def part(x):
    return tf.data.Dataset.range(20).map(lambda y: x * y)


ANY_ORDER = tf.data.Options()
ANY_ORDER.deterministic = False
RACING = {
    "random numbers": lambda: COUNT.map(drawn, num_parallel_calls=8),
    "random numbers, further back": lambda: COUNT.map(drawn, num_parallel_calls=8).batch(5).prefetch(1),
    "Python": lambda: COUNT.map(python, num_parallel_calls=8),
    "a layer": lambda: COUNT.map(flipped, num_parallel_calls=8),
    "in any order": lambda: COUNT.interleave(part, cycle_length=8, num_parallel_calls=8, deterministic=False),
    "in any order, as an option": lambda: COUNT.with_options(ANY_ORDER),
    "inside of another": lambda: COUNT.flat_map(lambda _: tf.data.Dataset.range(3).map(drawn, num_parallel_calls=8)),
}


@pytest.mark.parametrize("name", RACING)
def test_what_races_is_found(name):
    assert dataset_reading._varies(RACING[name]())


@pytest.mark.parametrize(
    "data",
    [
        COUNT.map(drawn),
        COUNT.shuffle(9, seed=1).batch(4, num_parallel_calls=2),
        COUNT.map(lambda x: x + 1, num_parallel_calls=8),
        COUNT.map(lambda x: tf.cast(x, tf.float32) * WEIGHT, num_parallel_calls=8),
        COUNT.interleave(part, cycle_length=8),
    ],
    ids=["random numbers", "shuffled", "stateless", "a weight", "interleaved"],
)
def test_what_does_not_race_stays_parallel(data):
    assert not dataset_reading._varies(data)


@pytest.mark.parametrize("name", ["random numbers", "Python", "a layer", "in any order"])
def test_what_races_is_read_in_order(name):
    def numbers():
        random.seed(1)
        tf.random.set_seed(1)
        FLIP.generator.state.assign([1, 0])
        data = RACING[name]()
        # TensorFlow caches the optimized pipeline of a dataset that has been iterated.
        next(iter(data))
        random.seed(1)
        FLIP.generator.state.assign([1, 0])
        return np.concatenate([np.ravel(one) for one in dataset_reading._iterating(tf.data.Dataset.__iter__, data)])

    np.testing.assert_array_equal(numbers(), numbers())


def test_numbers_without_a_seed_are_read():
    """They have no order; TensorFlow refuses to give them one."""
    tf.random.set_seed(None)
    assert len(list(dataset_reading._iterating(tf.data.Dataset.__iter__, RACING["random numbers"]()))) == 500


def test_a_long_chain_is_looked_through():
    """However many datasets it is made of."""
    data = COUNT
    for _ in range(1100):
        data = data.concatenate(COUNT)
    assert not dataset_reading._varies(data)
