"""Sequence to sequence: an LSTM reads a sum such as `57+8`, and writes the digits of the result.

    ansible-playbook train.yml -e model=examples/addition.py:build -e dataset=examples/addition.py:data -e run=addition \
      -e evaluate=true -e epochs=25 -e set=train.batch_size=64

Expected after 25 epochs on two workers, on the test examples: 0.995 of the places are right; 46 s.

The sums have different lengths: each batch is padded to its longest, and the mask keeps the padding out of the LSTM.
"""

import keras
import numpy as np
from keras import layers

SYMBOLS = " 0123456789+"
"""A symbol's number is its place; 0 is padding."""
DIGITS = 3


def build(width=96, learning_rate=5e-3):
    """An encoder and a decoder; the output is a digit, or blank, for each place from the right."""
    inputs = keras.Input((None,), dtype="int32")
    code = layers.LSTM(width)(layers.Embedding(len(SYMBOLS), 16, mask_zero=True)(inputs))
    written = layers.LSTM(width, return_sequences=True)(layers.RepeatVector(DIGITS)(code))
    model = keras.Model(inputs, layers.Dense(len(SYMBOLS))(written))
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate, clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def data(split):
    """All sums of two numbers below 100, from right to left; one in five is for the test."""
    if split == "validation":
        return None
    pairs = np.random.default_rng(0).permutation([(first, second) for first in range(100) for second in range(100)])
    pairs = pairs[:8000] if split == "train" else pairs[8000:]
    sums = np.empty(len(pairs), object)
    sums[:] = [encoded(f"{first}+{second}"[::-1]) for first, second in pairs]
    return sums, np.array([encoded(f"{first + second:{DIGITS}}"[::-1]) for first, second in pairs])


def encoded(text):
    """The numbers of the symbols."""
    return np.array([SYMBOLS.index(symbol) for symbol in text], "int32")
