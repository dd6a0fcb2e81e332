"""A model's `train_step` as the step of a run: every worker is fed the whole batch, and layers take their rows of it."""

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer import additive, applying, keras_metrics, rehearsal, step, strategy, whole
from trainer.data.pipeline import Batch
from trainer.optimizer import rate_of
from trainer.processors import FromChief, changing
from trainer.replacing import replaced


class Program:
    """A model that trains with its `train_step`, and the optimizers in it: what `step.make_train_call` runs."""

    def __init__(self, local: step.Local, placements: rehearsal.Placements, by_rows: additive.Additive | None = None):
        """Take a compiled model in a connected cluster whose workers have one device each.

        Args:
            local: the model, and what it is fed.
            placements: of its layers.
            by_rows: its step, if that adds up over rows, but for gradients of repeated rows, which are updated one by one.
        """
        self.local, self.placements = local, placements
        self.model, self.spec, self._group = local.model, local.spec, local.cluster.group
        self._by_rows = by_rows if self._group.workers > 1 else None
        self.from_chief = FromChief(self._group)
        self.shares: Sequence[int] | None = None
        """Of a batch's rows by rank; None: equal ones."""
        self.optimizers: list[Any] = []
        """Those of the model that apply gradients; known once it is traced."""
        self.logs = keras_metrics.StepLogs()

    @property
    def adds_up(self) -> bool:
        """Whether all that workers compute alike is the optimizer's update."""
        return self._by_rows is not None

    @property
    def sent(self) -> str:
        """What workers send each other, and why."""
        if self._by_rows is not None:
            return "as they are, those of an Embedding by row: the optimizer updates repeated rows one by one"
        return "as they are, with the outputs of all workers: the model's step is not known to be a sum over rows"

    @property
    def variables(self) -> list[tf.Variable]:
        """What training changes, once it is traced: weights, states of random generators, and the optimizers' variables."""
        optimizers = [variable for optimizer in self.optimizers for variable in optimizer.variables]
        every = [*self.model.weights, *step.seeds(self.model), *optimizers]
        return [variable.value for variable in {id(one): one for one in every}.values()]

    @property
    def rate(self) -> float:
        """The learning rate of the first optimizer; 0 if there is none."""
        return next((rate_of(optimizer) for optimizer in self.optimizers), 0.0)

    def run(self, rate: tf.Tensor, batch: Batch) -> tf.Tensor:  # noqa: ARG002 - its optimizers have rates of their own
        """A step; its row as of `step.Steps`, the same on all workers but for what they ask."""
        return step.in_replica(self.local.cluster, self._step, batch)

    def _step(self, batch: Batch) -> tf.Tensor:
        count, batch = tf.reduce_sum(batch.weights), step.trimmed(self.spec, batch)
        # The model is no strategy's, whose replica context TensorFlow's collectives need.
        with strategy.outside(), keras_metrics.changes(self.model) as moved:
            returned, tracks_loss = self._train_step(self.local.augment(batch))
        values = self.logs.read(self.model, returned, tracks_loss)
        self.from_chief.take([weight.value for weight in (self.model.weights if self._by_rows is None else changing(self.model))])
        return tf.concat([tf.stack([batch.asks, count]), *step.flattened([*moved, *values])], axis=0)

    def _train_step(self, data: Any) -> tuple[dict[str, Any], bool]:
        """The model's logs, and whether the step updated the tracker of the loss that Keras gives every model."""
        count, updates = keras_metrics.loss_count(self.model), list[Any]()
        assign = getattr(count, "_direct_assign", list)

        def noting(value: Any) -> Any:
            updates.append(value)
            return assign(value)

        with (
            applying.instead(self._note),
            replaced(count, "_direct_assign", noting) if count is not None else contextlib.nullcontext(),
        ):
            logs: dict[str, Any] = self._whole(data) if self._by_rows is None else self._added(self._by_rows, data)
        return logs, bool(updates)

    def _whole(self, data: Any) -> Any:
        with whole.Step(self._group, self.placements.seeing_all, shares=self.shares)():
            return self.model.train_step(data)

    def _added(self, by_rows: additive.Additive, data: Any) -> Any:
        every, _ = by_rows.added(self._group, data, self.shares).summed(self._group)
        return by_rows.finish(every)

    def _note(self, optimizer: Any, gradients: list[Any], variables: list[Any] | None, apply: Any) -> None:
        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)
        apply(optimizer, gradients, variables)

    def total(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows of several steps: what workers ask is summed, all else is of the whole batch, as the chief has computed it."""
        mine = rows if self._group.rank == 0 else tf.concat([rows[:, :1], tf.zeros_like(rows[:, 1:])], axis=1)
        return step.in_replica(self.local.cluster, lambda one: self._group.sum([one])[0], mine)
