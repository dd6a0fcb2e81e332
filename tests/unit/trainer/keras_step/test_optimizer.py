"""What an optimizer is given: gradients that are too long are shortened."""

import pytest
import tensorflow as tf

from trainer.keras_step import optimizer


@pytest.mark.parametrize(("longest", "factor"), [(10.0, 1.0), (5.0, 1.0), (2.5, 0.5)])
def test_only_longer_gradients_are_shortened(longest, factor):
    """Their norm over all of them is 5."""
    assert float(optimizer._clip_factor([tf.constant([3.0, 0.0]), tf.constant([[4.0]])], longest)) == pytest.approx(factor)


def test_gradients_of_zeros_stay():
    assert float(optimizer._clip_factor([tf.zeros((2,))], 1.0)) == 1.0
