"""A model of Keras: what it was compiled with, what of it is the user's own, and what its steps change."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

LOSSES = ("train_step", "compute_loss")
"""Methods without which a model's loss is not known to be one that Keras computes."""
STEPS = (*LOSSES, "test_step", "compute_metrics")
"""Methods without which a model's steps are not."""


@dataclass(frozen=True)
class CompiledModel:
    """A model, whose answers follow from what it is at the time of the call: it may be compiled again."""

    model: keras.Model

    def overridden(self, methods: Sequence[str] = STEPS) -> list[str]:
        """Methods that the model has instead of Keras' own."""
        return [name for name in methods if getattr(type(self.model), name) is not getattr(keras.Model, name)]

    @property
    def overwrites(self) -> bool:
        """True if a weight's gradient is its new value, which is no sum over rows, as the scales of float8 are."""
        return any(variable.overwrite_with_gradient for variable in self.model.trainable_variables)

    @property
    def steps_are_keras(self) -> bool:
        """True if steps and optimizer are Keras' own."""
        optimizer = self.model.optimizer
        return not (self.overridden() or self.overwrites) and (
            optimizer is None or getattr(type(optimizer), "apply_gradients", None) is BaseOptimizer.apply_gradients
        )

    @property
    def compiled_with(self) -> list[Any]:
        """The losses and metrics that `compile` was given, without names of Keras' own: objects, functions."""
        losses, metrics = self.model._compile_loss, self.model._compile_metrics
        every = [losses._user_loss if losses is not None else None]
        every += [metrics._user_metrics, metrics._user_weighted_metrics] if metrics is not None else []
        return [one for one in tf.nest.flatten(every) if not (one is None or isinstance(one, str))]

    @property
    def unknown(self) -> list[str]:
        """Names of losses and metrics that are not Keras' own: whether they add up may depend on the data."""
        return [_name(one) for one in self.compiled_with if not _is_keras(one)]

    def validates(self, specs: Any) -> bool:
        """Return whether Keras' `evaluate` gives anything: a model may have no loss, where only a `train_step` of its own computes one.

        Args:
            specs: of a batch of any number of rows.
        """
        if self.overridden(("train_step", "test_step", "compute_loss")) != ["train_step"] or self.model.loss is not None:
            return True
        # What its layers add is a loss, too.
        try:
            tf.function(self.model.test_step, autograph=False).get_concrete_function(specs)
        except Exception:
            return False
        return True

    # --- variables

    @property
    def metric_states(self) -> list[keras.Variable]:
        """The variables of the metrics, the loss included, in the same order on every worker."""
        variables = [variable for metric in self.model.metrics for variable in metric.variables]
        return list({id(variable): variable for variable in variables}.values())

    @property
    def metric_size(self) -> int:
        """How many numbers the `metric_states` have."""
        return sum(math.prod(variable.shape) for variable in self.metric_states)

    @contextlib.contextmanager
    def metric_changes(self, kept: bool = False) -> Iterator[list[tf.Tensor]]:
        """Yield a list that has the change of each of the `metric_states` once the context ends; they are as before then, unless `kept`."""
        variables, moved = self.metric_states, list[tf.Tensor]()
        before = [tf.identity(variable.value) for variable in variables]
        yield moved
        for variable, value in zip(variables, before, strict=True):
            moved.append(variable.value - value)
            if not kept:
                variable.assign(value)

    @property
    def loss_count(self) -> keras.Variable | None:
        """Count of the loss tracker. Keras gives one to every model, and a step of the model's own may leave it alone."""
        trackers = [metric for metric in self.model.metrics if metric.name == "loss"]
        return trackers[0].count if trackers == [self.model._loss_tracker] else None

    @property
    def seeds(self) -> list[keras.Variable]:
        """States of random generators, such as Dropout's, and of those of the losses."""
        others = {id(variable) for variable in self.model.weights}
        of_losses = [one.state for one in self._in_losses(keras.random.SeedGenerator)]
        return [*(variable for variable in self.model.variables if id(variable) not in others), *of_losses]

    @property
    def kept_by_losses(self) -> list[keras.Variable]:
        """Variables that losses keep, such as a moving mean."""
        return self._in_losses(keras.Variable)

    def _in_losses(self, kind: type) -> list[Any]:
        losses = [one for one in self.compiled_with if isinstance(one, keras.losses.Loss)]
        return [value for one in losses for value in vars(one).values() if isinstance(value, kind)]

    @property
    def changing(self) -> list[keras.Variable]:
        """The weights that a step of Keras' own may change: those that train, and what layers keep."""
        return [*self.model.trainable_variables, *self._kept_by(self.model._flatten_layers())]

    @property
    def statistics(self) -> list[keras.Variable]:
        """Variables that the model updates itself in training: non-trainable ones of layers that are not frozen, if they are numbers."""
        every = self._kept_by(layer for layer in self.model._flatten_layers() if layer.trainable)
        return [variable for variable in every if (kind := tf.as_dtype(variable.dtype)).is_floating or kind.is_integer]

    @staticmethod
    def _kept_by(layers: Any) -> list[keras.Variable]:
        return [variable for layer in layers for variable in layer._non_trainable_variables]


def _name(one: Any) -> str:
    return str(getattr(one, "name", None) or getattr(one, "__name__", None) or type(one).__name__)


def _is_keras(one: Any) -> bool:
    functions = [getattr(one, name) for name in ("fn", "_fn") if hasattr(one, name)]
    return all(str(getattr(each, "__module__", "")).partition(".")[0] == "keras" for each in (one, *functions))
