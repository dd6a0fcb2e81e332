"""Denoising: a convolutional autoencoder removes noise and dead pixels from pictures of overlapping bars.

    ansible-playbook train.yml -e model=examples/denoising.py:build -e dataset=examples/denoising.py:data -e run=denoising \
      -e evaluate=true -e epochs=8 -e set=train.batch_size=32

Expected after 8 epochs on two workers, on the test examples: RMSE 0.105 (noisy pictures: 0.193); 47 s.
"""

import keras
import numpy as np
from keras import layers

SIZE = 28


def build(width=16, learning_rate=2e-3):
    """From 28 x 28 pixels to 7 x 7 x `width` numbers, and back."""
    model = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            layers.Conv2D(width, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(width, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2DTranspose(width, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2DTranspose(width, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate), loss="binary_crossentropy", metrics=[keras.metrics.RootMeanSquaredError("rmse")]
    )
    return model


def data(split):
    """Noisy pictures, and the clean ones."""
    if split == "validation":
        return None
    random = np.random.default_rng(0 if split == "train" else 1)
    clean = np.zeros((2048 if split == "train" else 512, SIZE, SIZE, 1), "float32")
    for picture in clean:
        for _ in range(3):
            top, left = random.integers(0, SIZE - 6, 2)
            height, width = random.permutation([random.integers(2, 5), random.integers(8, 20)])
            picture[top : top + height, left : left + width] = random.uniform(0.5, 1)
    noisy = clean + random.normal(0, 0.25, clean.shape)
    noisy[random.random(clean.shape) < 0.1] = 0
    return noisy.clip(0, 1).astype("float32"), clean
