"""Sequences of different lengths, a function that changes them, and models that see their padding, for `test_feeding.py`."""

import keras
import numpy as np
from keras import layers


def data(split):
    """Sequences of 1 to 24 numbers in three classes, one of them rare."""
    if split == "validation":
        return None
    random = np.random.default_rng(0 if split == "train" else 1)
    count = 120 if split == "train" else 30
    lengths = random.integers(1, 25, count)
    x = np.empty(count, object)
    x[:] = [random.integers(1, 10, length).astype(np.int32) for length in lengths]
    names = np.array(["long", "short", "middle"])
    return x, names[np.where(lengths > 20, 0, np.where(lengths < 12, 1, 2))]


def augment(x, y, seed):
    """Leave a part out, and shuffle the rest."""
    random = np.random.default_rng(seed)
    return random.permutation(x)[: random.integers(1, len(x) + 1)], y


def build(width=8, hidden=False):
    """Nothing is masked, so the length that a batch is padded to counts."""
    inputs = keras.Input((None,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(10, width, name="numbers")(inputs))
    x = layers.Dense(width, name="hidden")(x) if hidden else x
    model = keras.Model(inputs, layers.Dense(3, name="classes")(x))
    # Not Adam, which in Keras 3.15 squares the gradients of a word before it adds them up: `fit` then moves too far.
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2, momentum=0.9), loss, metrics=["accuracy"])
    return model
