"""A siamese network: whether two pictures, turned and shifted, show the same kind of shape.

    ansible-playbook train.yml -e model=examples/siamese.py:build -e dataset=examples/siamese.py:data -e run=siamese \
      -e evaluate=true -e epochs=10 -e set=train.batch_size=32

Expected after 10 epochs on two workers, on the test examples: accuracy 0.91 (chance: 0.50); 23 s.
"""

import keras
import numpy as np
from keras import layers, ops

SIZE = 24
CORNERS = (3, 4, 60)
"""Triangles, squares, discs."""


def build(width=16, learning_rate=2e-3):
    """One encoder for both pictures; the output is a logit of how likely they are the same, from the distance of their codes."""
    encoder = keras.Sequential(
        [
            layers.Conv2D(width, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * width, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * width, 3, activation="relu"),
            layers.GlobalMaxPooling2D(),
            layers.Dense(16),
        ],
        name="encoder",
    )
    inputs = {side: keras.Input((SIZE, SIZE, 1), name=side) for side in ("left", "right")}
    distance = ops.square(encoder(inputs["left"]) - encoder(inputs["right"]))
    model = keras.Model(inputs, layers.Dense(1)(distance))
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)],
    )
    return model


def picture(random, corners):
    """A polygon with some noise."""
    rows, columns = np.mgrid[:SIZE, :SIZE] - random.uniform(9, 14, 2)[:, np.newaxis, np.newaxis]
    radius, turn = random.uniform(5, 8), random.uniform(0, 2 * np.pi)
    angle = (np.arctan2(rows, columns) + turn) % (2 * np.pi / corners) - np.pi / corners
    shape = np.hypot(rows, columns) * np.cos(angle) <= radius * np.cos(np.pi / corners)
    return (shape + random.normal(0, 0.1, shape.shape))[..., np.newaxis]


def data(split):
    """Pairs of pictures, and 1 where they show the same kind."""
    if split == "validation":
        return None
    random = np.random.default_rng(0 if split == "train" else 1)
    count = 2048 if split == "train" else 512
    same = random.integers(0, 2, count)
    left = random.integers(0, len(CORNERS), count)
    right = np.where(same, left, (left + random.integers(1, len(CORNERS), count)) % len(CORNERS))
    sides = {"left": left, "right": right}
    x = {side: np.array([picture(random, CORNERS[kind]) for kind in kinds], "float32") for side, kinds in sides.items()}
    return x, same[:, np.newaxis]
