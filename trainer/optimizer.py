"""The update rule, applied once a step to gradients that are already summed over the workers."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from trainer.config import Optimizer


class SGD:
    """Stochastic gradient descent with momentum, Keras' formula, one fused op a variable.

    velocity = momentum * velocity - rate * gradient; weight += velocity. The division by the number
    of images is folded into the rate, so a gradient is read once.
    """

    def __init__(self, config: Optimizer, variables: Sequence[keras.Variable]):
        """Create under the strategy's scope: the slots live beside the weights."""
        self._momentum, self._decay = config.momentum, config.weight_decay
        self._weights = [variable.value for variable in variables]
        self.slots = [tf.Variable(tf.zeros(weight.shape), trainable=False, name="velocity") for weight in self._weights]

    def apply(self, sums: Sequence[tf.Tensor], images: tf.Tensor, rate: tf.Tensor) -> None:
        """Update in replica context from summed gradients and the number of images in the sum."""
        for weight, slot, gradient in zip(self._weights, self.slots, sums, strict=True):
            if self._decay:
                weight.assign_sub(weight * (rate * self._decay))
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=weight.handle,
                accum=slot.handle,
                lr=rate / images,
                grad=gradient,
                momentum=self._momentum,
                use_locking=False,
                use_nesterov=False,
            )


def make(config: Optimizer, variables: Sequence[keras.Variable]) -> SGD:
    """The optimizer that a configuration names."""
    return SGD(config, variables)
