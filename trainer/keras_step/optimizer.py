"""The update rule, applied once per step to the mean gradient of all workers.

L2 penalties are part of the update and are not sent: they would add a full-rank part to a compressed gradient.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from trainer.common.patching import replaced
from trainer.config.schema import Optimizer
from trainer.network import tf_strategy
from trainer.network.all_reduce import on_host
from trainer.network.host_array import HostArray, RowPool, aligned
from trainer.reduction.fixed_sum import fixed_sum
from trainer.reduction.method import LowRank
from trainer.user_code.undo import is_users


class SGD:
    """Stochastic gradient descent with momentum, Keras' formula, one fused op per variable.

    velocity = momentum * velocity - rate * gradient; weight += velocity. Decay is decoupled and comes first. `clip_norm` scales a
    gradient down through a smaller rate, instead of another pass over it.
    """

    rate: float | None = None
    """Each step is given one."""

    def __init__(self, config: Optimizer, variables: Sequence[keras.Variable], low_rank: Collection[int] = (), threads: int = 1):
        """Create under the strategy's scope: the slots live beside the weights.

        Variables whose numbers are in `low_rank` may get their gradient as `LowRank`; `threads` compute these updates.
        """
        self._momentum, self._decay, self._clip = config.momentum, config.weight_decay, config.clip_norm
        self._weights, self._penalties = [variable.value for variable in variables], [penalty(variable) for variable in variables]
        weights, penalties = self._weights, self._penalties
        self._on_host = {number: HostWeight(weights[number], config, penalties[number], threads) for number in sorted(low_rank)}
        self.slots = [
            self._on_host[number].velocity if number in low_rank else _slot(weight) for number, weight in enumerate(self._weights)
        ]

    def apply(self, gradients: Sequence[tf.Tensor | LowRank], rate: tf.Tensor) -> None:
        """Update in replica context."""
        short = _clip_factor(gradients, self._clip) if self._clip else None
        step = rate if short is None else rate * short
        for number, (weight, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            if number in self._on_host:
                self._on_host[number].apply(gradient, step, rate)
            elif factor := self._penalties[number]:
                self._apply(weight, self.slots[number], _penalised(gradient, short, weight, factor), rate, rate)
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
        )


class Adam:
    """Adam (Kingma, Ba 2015, arXiv:1412.6980), Keras' formula, one fused op per variable.

    Decay is decoupled (Loshchilov, Hutter 2019, arXiv:1711.05101) and comes first. Low-rank gradients are multiplied out.
    """

    rate: float | None = None
    """As of `SGD`."""

    def __init__(self, config: Optimizer, variables: Sequence[keras.Variable]):
        """Create under the strategy's scope: the slots live beside the weights."""
        self._config = config
        self._weights, self._penalties = [variable.value for variable in variables], [penalty(variable) for variable in variables]
        self._means, self._squares = ([_slot(weight) for weight in self._weights] for _ in range(2))
        self._age = tf.Variable(0.0, trainable=False, name="age")
        self.slots = [*self._means, *self._squares, self._age]

    def apply(self, gradients: Sequence[tf.Tensor | LowRank], rate: tf.Tensor) -> None:
        """Update in replica context."""
        config = self._config
        short = _clip_factor(gradients, config.clip_norm) if config.clip_norm else None
        age = self._age + 1.0
        tf.raw_ops.AssignAddVariableOp(resource=self._age.handle, value=tf.constant(1.0))
        powers = tf.pow(config.beta_1, age), tf.pow(config.beta_2, age)
        for weight, mean, square, gradient, factor in zip(
            self._weights, self._means, self._squares, gradients, self._penalties, strict=True
        ):
            full = _penalised(_multiplied(gradient, weight.shape), short, weight, factor)
            if config.weight_decay:
                tf.raw_ops.AssignSubVariableOp(resource=weight.handle, value=weight * (rate * config.weight_decay))
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle,
                m=mean.handle,
                v=square.handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=rate,
                beta1=config.beta_1,
                beta2=config.beta_2,
                epsilon=config.epsilon,
                grad=full,
            )


_thread = threading.local()
"""`has_sums`: the gradients of this thread's optimizer are those of all replicas. Workers may be threads."""


def _updating(update: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(update)
    def updated(optimizer: Any, *given: Any) -> None:
        (BaseOptimizer._backend_update_step if getattr(_thread, "has_sums", False) else update)(optimizer, *given)

    return updated


TFOptimizer._backend_update_step = _updating(TFOptimizer._backend_update_step)


class OfKeras:
    """Any optimizer of Keras, with its own arithmetic. Low-rank gradients are multiplied out."""

    def __init__(self, optimizer: Any, variables: Sequence[keras.Variable], compiled: bool = False):
        """Create its variables under the strategy's scope; that of a `compiled` model has its own rate, and penalties are in the loss."""
        self._optimizer, self._variables, self._compiled = optimizer, list(variables), compiled
        self._penalties = [0.0 if compiled else penalty(variable) for variable in variables]
        self._scoped = tf.distribute.has_strategy()
        if not optimizer.built:
            optimizer.build(self._variables)
        self.slots = [variable.value for variable in optimizer.variables if compiled or variable is not optimizer.learning_rate]

    @property
    def rate(self) -> float | None:
        """The current learning rate of a compiled model's optimizer."""
        return rate_of(self._optimizer) if self._compiled else None

    def apply(self, gradients: Sequence[tf.Tensor | LowRank], rate: tf.Tensor) -> None:
        """Update in replica context."""
        full = [
            _penalised(_multiplied(gradient, variable.shape), None, variable.value, factor)
            for gradient, variable, factor in zip(gradients, self._variables, self._penalties, strict=True)
        ]
        if not self._compiled:
            self._optimizer.learning_rate.assign(rate)
        # Keras would sum over a strategy's replicas first, but each of them has the sum.
        with contextlib.ExitStack() as patched:
            patched.enter_context(contextlib.nullcontext() if self._scoped else tf_strategy.outside())
            patched.enter_context(replaced(_thread, "has_sums", True))
            self._optimizer.apply(full, self._variables)


Rule = SGD | Adam | OfKeras


def inner(optimizer: Any) -> Any:
    """The optimizer that one that scales the loss wraps; itself, if it wraps none."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def several(optimizer: Any) -> list[Any]:
    """The optimizers that one of several variables' own combines; itself, if it combines none."""
    return list(optimizer.optimizers) if isinstance(optimizer, keras.optimizers.MultiOptimizer) else [optimizer]


def copies_weights(optimizer: Any, weights: Sequence[keras.Variable]) -> bool:
    """Return whether an optimizer, if built, begins with a copy of the weights, which Keras' `fit` forgets where it traces."""
    every = several(inner(optimizer))
    if any(isinstance(one, keras.optimizers.ScheduleFreeAdamW) for one in every):
        return True
    kept = [variable.numpy() for one in every if one is not None and is_users(one) for variable in one.variables]
    values = [weight.numpy() for weight in weights] if kept else []
    return any(value.any() and value.shape == one.shape and np.array_equal(value, one) for value in values for one in kept)


def rate_of(optimizer: Any) -> float:
    """The current learning rate of a Keras optimizer, which may follow a schedule; of several in one, that of the first."""
    rate = several(optimizer)[0].learning_rate
    return float((rate.value if isinstance(rate, keras.Variable) else rate).numpy())


def _clip_factor(gradients: Sequence[tf.Tensor | LowRank], longest: float) -> tf.Tensor:
    """The factor that scales gradients down to a norm of at most `longest`, over all of them."""
    # The left factor's rows are orthonormal, so the product has the norm of the right factor.
    tensors = [gradient.right if isinstance(gradient, LowRank) else gradient for gradient in gradients]
    # Not `add_n`: TensorFlow's graph optimizer reorders its inputs, differently in each graph.
    norm = tf.sqrt(fixed_sum(tf.stack([fixed_sum(tf.square(tensor)) for tensor in tensors])))
    return tf.minimum(1.0, longest / tf.maximum(norm, np.finfo(np.float32).tiny))


def penalty(variable: keras.Variable) -> float:
    """Twice the coefficient of a weight's L2 penalty: the factor of the weight in the loss's gradient."""
    regularizer = variable.regularizer
    return 2 * float(regularizer.l2) if type(regularizer) is keras.regularizers.L2 else 0.0


@contextlib.contextmanager
def penalties_apart(model: keras.Model) -> Iterator[None]:
    """While a step is traced, L2 penalties of weights count neither in the loss nor in its gradients: they are part of the update."""
    with contextlib.ExitStack() as patched:
        for variable in model.trainable_variables:
            if penalty(variable):
                patched.enter_context(replaced(variable, "regularizer", None))
        yield


def _penalised(gradient: tf.Tensor, short: tf.Tensor | None, weight: Any, factor: float) -> tf.Tensor:
    """A gradient, scaled by `short` if given, with its weight's penalty."""
    shortened = gradient if short is None else gradient * short
    return shortened + weight * factor if factor else shortened


def _multiplied(gradient: tf.Tensor | LowRank, shape: Sequence[int]) -> tf.Tensor:
    """A gradient as one tensor, multiplied out if it is low-rank."""
    if isinstance(gradient, LowRank):
        return tf.reshape(tf.matmul(gradient.left, gradient.right, transpose_a=True), shape)
    return gradient


class HostWeight:
    """One weight that compiled loops update, from factors or from a full gradient."""

    def __init__(self, weight: Any, config: Optimizer, factor: float, threads: int):
        self._weight, self._penalty = weight, np.float32(factor)
        self._shape = (int(np.prod(weight.shape[:-1])), int(weight.shape[-1]))
        self._momentum, self._decay = np.float32(config.momentum), np.float32(config.weight_decay)
        self.velocity = HostArray(tuple(weight.shape))
        # The variable takes over this memory once; later steps update it in place.
        self._memory = aligned(self._shape)
        self._crew = RowPool(threads)

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
        arguments = *factors, velocity, self._memory, self._momentum, np.float32(step), decay, np.float32(rate * self._penalty)
        self._crew.run(loop, self._crew.parts(*self._shape), *arguments)
        return [self._memory.reshape(self._weight.shape)]


def _slot(weight: Any) -> tf.Variable:
    # A fused update needs it on the weight's device.
    with tf.distribute.get_strategy().extended.colocate_vars_with(weight):
        return tf.Variable(tf.zeros(weight.shape), trainable=False, name="velocity")


def make_rule(config: Optimizer, variables: Sequence[keras.Variable], low_rank: Collection[int] = (), threads: int = 1) -> Rule:
    """The optimizer that a configuration names; Keras' own where ours has no such rule, or would ignore a constraint of a weight."""
    constrained = any(variable.constraint is not None for variable in variables)
    if config.name in ADAM and not constrained:
        return Adam(config, variables)
    if config.name == "sgd" and not constrained:
        return SGD(config, variables, low_rank, threads)
    own = {"sgd": ("momentum",), **dict.fromkeys(ADAM, ("beta_1", "beta_2", "epsilon"))}.get(config.name, ())
    arguments = {"learning_rate": config.learning_rate, "weight_decay": config.weight_decay or None, "global_clipnorm": config.clip_norm}
    kinds = {name.lower(): kind for name, kind in vars(keras.optimizers).items()}
    return OfKeras(kinds[config.name](**arguments, **{name: getattr(config, name) for name in own}), variables)


ADAM = ("adam", "adamw")
"""Two names of one rule: without decay, AdamW is Adam."""
