"""A model's `train_step` as the step of a run: every worker is fed the whole batch, and layers take their own rows."""

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.common.patching import replaced
from trainer.data.batch import Batch
from trainer.keras_step import additive, gradient_capture, keras_metrics
from trainer.keras_step.mixed_processors import FromChief
from trainer.keras_step.optimizer import rate_of
from trainer.models.compiled_model import CompiledModel
from trainer.network import tf_strategy
from trainer.step import batch_arrays, testing, worker_step


class Program(worker_step.Steps):
    """A model that trains with its `train_step` and the optimizers in it."""

    logs: keras_metrics.StepLogs
    feeds_all = True

    def __init__(self, local: worker_step.Local, by_rows: additive.Additive, adds_up: bool):
        """Take a compiled model in a connected cluster whose workers have one device each.

        Args:
            local: the model, the placements of its layers, and the specification of its input.
            by_rows: the model's step.
            adds_up: whether the step is a sum over rows, except gradients of repeated rows, which are applied one by one.
        """
        self.local, self.model, self._group, self._by_rows = local, local.model, local.cluster.group, by_rows
        self.adds_up = adds_up and self._group.workers > 1
        self.from_chief, self.logs = FromChief(self._group), keras_metrics.StepLogs()
        self.shares: Sequence[int] | None = None
        """Shares of a batch's rows, by rank; None: equal shares."""
        self._optimizers: list[Any] = []

    @property
    def optimizers(self) -> list[Any]:
        """Optimizers of the model that apply gradients; known once the step is traced."""
        return self._optimizers

    @property
    def sent(self) -> str:
        """The reduction, the form in which workers send gradients, with the reason."""
        if self.adds_up:
            return "as they are, those of an Embedding by row: the optimizer updates repeated rows one by one"
        return "as they are, with the outputs of all workers: the model's step is not known to be a sum over rows"

    @property
    def slots(self) -> list[Any]:
        """See `Steps`."""
        return [variable.value for optimizer in self._optimizers for variable in optimizer.variables]

    @property
    def rate(self) -> float:
        """See `Steps`; the rate of the first optimizer, 0 if there is none."""
        return next((rate_of(optimizer) for optimizer in self._optimizers), 0.0)

    def run(self, rate: tf.Tensor, batch: Batch) -> tf.Tensor:  # noqa: ARG002 - its optimizers have rates of their own
        """See `Steps`; the row is equal on all workers, except for their requests."""
        return worker_step.in_replica(self.local.cluster, self._step, batch)

    def _step(self, batch: Batch) -> tf.Tensor:
        count, batch = tf.reduce_sum(batch.weights), batch_arrays.trimmed(self.local.spec, batch)
        # The model belongs to no strategy, but TensorFlow's collectives need a strategy's replica context.
        with tf_strategy.outside(), CompiledModel(self.model).metric_changes(kept=True) as moved:
            returned, tracks_loss = self._train_step(self.local.augment(batch))
        values = self.logs.read(self.model, returned, tracks_loss)
        self.from_chief.take([weight.value for weight in (CompiledModel(self.model).changing if self.adds_up else self.model.weights)])
        return tf.concat([tf.stack([batch.asks, count]), *testing.flattened([*moved, *values])], axis=0)

    def _train_step(self, data: Any) -> tuple[dict[str, Any], bool]:
        """The model's logs, and whether the step updated the loss tracker that Keras gives every model."""
        count, updates = CompiledModel(self.model).loss_count, list[Any]()
        assign = getattr(count, "_direct_assign", list)

        def noting(value: Any) -> Any:
            updates.append(value)
            return assign(value)

        with (
            gradient_capture.instead(self._note),
            replaced(count, "_direct_assign", noting) if count is not None else contextlib.nullcontext(),
        ):
            return self._by_rows.together(self._group, data, self.adds_up, self.shares), bool(updates)

    def _note(self, optimizer: Any, gradients: list[Any], variables: list[Any] | None, apply: Any) -> None:
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        apply(optimizer, gradients, variables)

    def total(self, sums: tf.Tensor) -> tf.Tensor:
        """See `Steps`: requests are summed over the workers; all other values are the chief's, for the whole batch."""
        mine = sums if self._group.rank == 0 else tf.concat([sums[:, :1], tf.zeros_like(sums[:, 1:])], axis=1)
        return worker_step.in_replica(self.local.cluster, lambda one: self._group.sum([one])[0], mine)
