"""Text classification: a Transformer says which chapter of the Python documentation a passage of 24 words is from.

    ansible-playbook train.yml -e model=examples/text.py:build -e dataset=examples/text.py:data -e run=text \
      -e evaluate=true -e epochs=12 -e set=train.batch_size=32

Expected after 12 epochs on two workers, on the test examples: accuracy 0.80 (the longest chapter always: 0.32); 59 s.

The text ships with Python (`pydoc_data`), and every host must have the same version of it: each adapts the vocabulary by itself.
"""

from pydoc_data.topics import topics

import keras
import numpy as np
from keras import layers

CHAPTERS = ("compound", "debugger", "formatstrings", "string-methods", "types")
WORDS = 24


@keras.saving.register_keras_serializable("examples")
class Positions(layers.Layer):
    """Adds a trained vector for each position."""

    def build(self, shape):
        """A vector for each of `shape`'s positions."""
        self.positions = self.add_weight(shape=shape[1:], initializer="uniform")

    def call(self, x):
        """The sum; padding stays masked."""
        return x + self.positions

    def compute_mask(self, inputs, mask=None):
        """The mask, unchanged."""
        return mask


def build(vocabulary=2000, width=48, heads=4, blocks=2, dropout=0.2, learning_rate=1e-3):
    """From strings to logits, one for each chapter."""
    vectorize = layers.TextVectorization(vocabulary, output_sequence_length=WORDS)
    vectorize.adapt(data("train")[0])
    inputs = keras.Input((), dtype="string")
    x = Positions()(layers.Embedding(vocabulary, width, mask_zero=True)(vectorize(inputs)))
    for _ in range(blocks):
        attended = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, attended]))
        hidden = layers.Dense(width)(layers.Dense(2 * width, activation="gelu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(dropout)(hidden)]))
    x = layers.Dropout(dropout)(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, layers.Dense(len(CHAPTERS))(x))
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def data(split):
    """Passages and the name of the chapter; one in five passages is for the test."""
    if split == "validation":
        return None
    passages, chapters = [], []
    for chapter in CHAPTERS:
        words = topics[chapter].split()
        for number, start in enumerate(range(0, len(words), WORDS)):
            if (number % 5 == 4) == (split == "test"):
                passages.append(" ".join(words[start : start + WORDS]))
                chapters.append(chapter)
    return np.array(passages), np.array(chapters)
