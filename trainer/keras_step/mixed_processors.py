"""Workers whose processors round differently: all of them take the chief's weights after each step.

Exponentials, powers and reciprocals have other last bits on aarch64 than on x86-64, and even on two x86-64 processors, and a sum of a large
vector depends on the number of threads. An update that every worker computes alike elsewhere would let their weights drift apart here. So
one worker computes it, and sends it to the others; that takes as many bytes again as the gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.keras_step.optimizer import inner
from trainer.network.all_reduce import Alone, Group, OnHost
from trainer.network.array_group import ArrayGroup, digest
from trainer.network.member import named

ITERATIONS = (0, 1_000)
"""At which an optimizer is tried: some raise numbers to the power of it."""
SHAPES = ((64, 64), (1000, 3), (33,))
"""Shapes of the variables for trying an optimizer."""
NORMS = 16
"""Vectors whose norms are tried where gradients are scaled by the norm of all."""


class FromChief:
    """Results of a step, taken from the chief where this is on when the step is traced."""

    def __init__(self, group: Group):
        """Begin with off. TensorFlow's collectives are left out: there, weights that differ are noticed when they are saved."""
        self._group, self._possible, self.on = group, isinstance(group, OnHost) and group.workers > 1, False

    def begin(self) -> bool:
        """Take from the next trace on; all workers do so at once. False if they can't, or do already."""
        begins, self.on = self._possible and not self.on, self._possible
        return begins

    def take(self, variables: Sequence[Any], results: Sequence[Any] = ()) -> list[Any]:
        """Assign the chief's values to variables, and return its results, in a traced step; what is no float is equal everywhere."""
        floats = [variable for variable in variables if _rounded(variable)]
        places = [place for place, result in enumerate(results) if tf.is_tensor(result) and _rounded(result)]
        if not self.on or not (floats or places):
            return list(results)
        values = [*map(tf.convert_to_tensor, floats), *(results[place] for place in places)]
        chiefs = self._group.sum(values if self._group.rank == 0 else [tf.zeros_like(value) for value in values])
        for variable, value in zip(floats, chiefs[: len(floats)], strict=True):
            variable.assign(value)
        found = dict(zip(places, chiefs[len(floats) :], strict=True))
        return [found.get(place, result) for place, result in enumerate(results)]


ALONE = FromChief(Alone())
"""Where one worker trains."""


def _rounded(value: Any) -> bool:
    return bool(tf.as_dtype(value.dtype).is_floating)


def differing(workers: ArrayGroup, optimizer: Any = None) -> list[int]:
    """Ranks whose processors update weights to other bits than the chief's; all workers ask at once.

    Args:
        workers: of the run.
        optimizer: that of Keras which computes the updates; None: it, or what else a step computes, is not known.
    """
    chief, *others = workers.digests(digest(_tried(optimizer) or _functions()))
    return [rank for rank, one in enumerate(others, 1) if one != chief]


def follow(workers: ArrayGroup, begin: Callable[[], bool], warn: Callable[[str], None], optimizer: Any = None) -> None:
    """Let workers take the chief's weights if some are `differing`, and warn the user; all workers do so at once.

    Args:
        workers: of the run.
        begin: makes this worker take them; False if it can't.
        warn: shows the user a sentence.
        optimizer: as of `differing`.
    """
    others = differing(workers, optimizer)
    if others and begin():
        what = "all workers take the chief's weights after each step, which sends as many bytes again as the gradients"
        warn(f"the processor of {named(workers.member.hosts, others)} rounds otherwise than the chief's: {what}")


def _tried(optimizer: Any) -> list[np.ndarray]:
    """Variables after updates of an optimizer's copy by made-up gradients; empty if no copy can be made."""
    if optimizer is None:
        return []
    try:
        copy = type(optimizer).from_config(optimizer.get_config())
        numbers = np.random.default_rng(0)
        variables = [keras.Variable(numbers.normal(size=shape), dtype="float32") for shape in SHAPES]
        copy.build(variables)
        results = []
        for iteration in ITERATIONS:
            copy._iterations.assign(iteration)
            copy.apply([tf.constant(numbers.normal(size=shape), tf.float32) for shape in SHAPES], variables)
            results += [variable.numpy() for variable in variables]
        if inner(optimizer).global_clipnorm:
            # One number a step, which may be equal by chance.
            results += [tf.linalg.global_norm([tf.constant(row, tf.float32)]).numpy() for row in numbers.normal(size=(NORMS, 1000))]
    except Exception:
        # An optimizer of the user's own may need more than its configuration.
        return []
    return results


def _functions() -> list[np.ndarray]:
    """Results of this processor for functions whose last bits differ between processors."""
    numbers = tf.constant(np.geomspace(1e-6, 30.0, 4096), tf.float32)
    functions = (tf.math.reciprocal, tf.math.rsqrt, tf.exp, tf.math.log, tf.tanh, tf.sigmoid, tf.math.erf, lambda x: tf.pow(x, 0.3))
    return [function(numbers).numpy() for function in functions]
