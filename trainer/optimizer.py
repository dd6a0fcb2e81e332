"""The update rule, applied once a step to the mean gradient of all workers."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.collective import on_host
from trainer.config import Optimizer
from trainer.hostarray import Crew, HostArray, aligned
from trainer.reduction import LowRank


class SGD:
    """Stochastic gradient descent with momentum, Keras' formula, one fused op a variable.

    velocity = momentum * velocity - rate * gradient; weight += velocity. Decay is decoupled and comes
    first. With `clip_norm` a gradient whose norm over all variables is larger is shortened to it; that
    is a smaller rate, and no pass over the gradient.
    """

    def __init__(self, config: Optimizer, variables: Sequence[keras.Variable], low_rank: Collection[int] = (), threads: int = 1):
        """Create under the strategy's scope: the slots live beside the weights.

        Args:
            config: the section `optimizer`.
            variables: the trainable ones.
            low_rank: which of them, by number, may get their gradient as `LowRank`.
            threads: for these.
        """
        self._momentum, self._decay, self._clip = config.momentum, config.weight_decay, config.clip_norm
        self._weights = [variable.value for variable in variables]
        self._on_host = {number: HostWeight(self._weights[number], config, threads) for number in sorted(low_rank)}
        self.slots = [
            self._on_host[number].velocity if number in low_rank else _slot(weight) for number, weight in enumerate(self._weights)
        ]

    def apply(self, gradients: Sequence[tf.Tensor | LowRank], rate: tf.Tensor) -> None:
        """Update in replica context."""
        step = rate * self._shortening(gradients) if self._clip else rate
        for number, (weight, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            if number in self._on_host:
                self._on_host[number].apply(gradient, step, rate)
            else:
                self._apply(weight, self.slots[number], gradient, step, rate)

    def _apply(self, weight: Any, slot: Any, gradient: tf.Tensor, step: tf.Tensor, rate: tf.Tensor) -> None:
        if self._decay:
            tf.raw_ops.AssignSubVariableOp(resource=weight.handle, value=weight * (rate * self._decay))
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=weight.handle,
            accum=slot.handle,
            lr=step,
            grad=gradient,
            momentum=self._momentum,
            use_locking=False,
            use_nesterov=False,
        )

    def _shortening(self, gradients: Sequence[tf.Tensor | LowRank]) -> tf.Tensor:
        # The left factor's rows are orthonormal: the product is as long as the right one.
        tensors = [gradient.right if isinstance(gradient, LowRank) else gradient for gradient in gradients]
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tensor)) for tensor in tensors]))
        return tf.minimum(1.0, self._clip / tf.maximum(norm, np.finfo(np.float32).tiny))


class HostWeight:
    """One weight that is updated by compiled loops: from factors, or from a whole gradient."""

    def __init__(self, weight: Any, config: Optimizer, threads: int):
        self._weight = weight
        self._shape = (int(np.prod(weight.shape[:-1])), int(weight.shape[-1]))
        self._momentum, self._decay = np.float32(config.momentum), np.float32(config.weight_decay)
        self.velocity = HostArray(tuple(weight.shape))
        # The variable is given this memory once, and keeps it: later steps update it in place.
        self._memory = aligned(self._shape)
        self._crew = Crew(threads)

    def apply(self, gradient: tf.Tensor | LowRank, step: tf.Tensor, rate: tf.Tensor) -> None:
        """Update in replica context."""
        (updated,) = on_host(self._update, [self._weight, step, rate, *tf.nest.flatten(gradient)], [(self._weight.shape, tf.float32)])
        self._weight.assign(updated)

    def _update(self, arrays: list[Any]) -> list[np.ndarray]:
        from trainer.reduction import kernels

        weight, step, rate, *gradient = arrays
        if weight.ctypes.data != self._memory.ctypes.data:
            self._memory[...] = weight.reshape(self._shape)
        loop: Callable[..., None]
        if len(gradient) > 1:
            loop, factors = kernels.momentum_low_rank, gradient
        else:
            loop, factors = kernels.momentum_dense, [gradient[0].reshape(self._shape)]
        velocity, decay = self.velocity.array.reshape(self._shape), np.float32(rate * self._decay)
        arguments = *factors, velocity, self._memory, self._momentum, np.float32(step), decay
        self._crew.run(loop, self._crew.parts(*self._shape), *arguments)
        return [self._memory.reshape(self._weight.shape)]


def _slot(weight: Any) -> tf.Variable:
    return tf.Variable(tf.zeros(weight.shape), trainable=False, name="velocity")


def make(config: Optimizer, variables: Sequence[keras.Variable], low_rank: Collection[int] = (), threads: int = 1) -> SGD:
    """The optimizer that a configuration names."""
    return SGD(config, variables, low_rank, threads)
