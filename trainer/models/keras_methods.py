"""Methods of Keras' Model that a user's own model replaces."""

from collections.abc import Sequence

import keras

LOSSES = ("train_step", "compute_loss")
"""Methods without which a model's loss is not known to be one that Keras computes."""
STEPS = (*LOSSES, "test_step", "compute_metrics")
"""Methods without which a model's steps are not."""


def overridden(model: keras.Model, methods: Sequence[str] = STEPS) -> list[str]:
    """Methods that a model has instead of Keras' own."""
    return [name for name in methods if getattr(type(model), name) is not getattr(keras.Model, name)]
