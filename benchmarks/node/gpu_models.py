"""Models and data of `benchmarks/scripts/gpu_check.py`: pictures for task_cnn, and a compiled model of a table."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import layers

PICTURES, ROWS = 5120, 20480


def pictures(split: str) -> Iterator[tuple[np.ndarray, str]]:
    """Yield pictures of 32x32 pixels with their class."""
    random = np.random.default_rng(0 if split == "train" else 1)
    for number in range(PICTURES if split == "train" else 64):
        image = random.integers(0, 90, (32, 32, 3), dtype=np.uint8)
        image[..., number % 3] += 120
        yield image, ("red", "green", "blue")[number % 3]


def build() -> keras.Model:
    """Return a compiled model of two columns' groups that gives one number."""
    inputs = {"numbers": keras.Input((24,), name="numbers"), "kind": keras.Input((), dtype="int32", name="kind")}
    x = layers.Concatenate()([inputs["numbers"], layers.Embedding(50, 8)(inputs["kind"])])
    for _ in range(2):
        x = layers.Dense(256, activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss="mse", metrics=["mae"])
    return model


def table(split: str) -> tuple[dict[str, Any], np.ndarray]:
    """Return rows of numbers with a category, and the number to predict."""
    random = np.random.default_rng(0 if split == "train" else 1)
    rows = ROWS if split == "train" else 1024
    numbers = random.normal(size=(rows, 24)).astype(np.float32)
    kind = random.integers(0, 50, rows).astype(np.int32)
    return {"numbers": numbers, "kind": kind}, numbers[:, :4].sum(axis=1) + np.sin(kind).astype(np.float32)
