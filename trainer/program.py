"""A model's own `train_step` as the step of a run, whose optimizers apply the gradients of all workers together."""

from typing import Any

import keras
import tensorflow as tf

from trainer import keras_metrics, step
from trainer.cluster import Cluster
from trainer.collective import AllReduce
from trainer.data.pipeline import Batch
from trainer.data.spec import Spec
from trainer.optimizer import rate_of
from trainer.synchronous import Synchronous


class Program:
    """A model that trains with its own `train_step`, and the optimizers in it: what `step.make_train_call` runs."""

    def __init__(self, cluster: Cluster, model: keras.Model, spec: Spec):
        """Take a compiled model, built outside the strategy's scope, in a connected cluster whose workers have one device each.

        `spec`: of the examples that a step is fed.
        """
        self.model, self.spec, self._cluster = model, spec, cluster
        all_reduce: AllReduce = cluster.all_reduce if cluster.member.workers > 1 else list
        self._synchronous, self._all_reduce = Synchronous(model, all_reduce), all_reduce
        self._seeds = [(variable, variable.numpy()) for variable in step.seeds(model)]
        self.means: list[str] = []
        """Names of what `train_step` returns besides metrics: means over all workers' examples; known once it is traced."""

    @property
    def optimizers(self) -> list[Any]:
        """Those of the model that apply gradients; known once it is traced."""
        return self._synchronous.optimizers

    @property
    def variables(self) -> list[tf.Variable]:
        """What training changes, once it is traced: the weights, and the optimizers' variables."""
        optimizers = [variable for optimizer in self.optimizers for variable in optimizer.variables]
        return [variable.value for variable in {id(one): one for one in [*self.model.weights, *optimizers]}.values()]

    @property
    def rate(self) -> float:
        """The learning rate of the first optimizer; 0 if there is none."""
        return next((rate_of(optimizer) for optimizer in self._synchronous.optimizers), 0.0)

    def run(self, rate: tf.Tensor, batch: Batch) -> tf.Tensor:  # noqa: ARG002 - its optimizers have rates of their own
        """A step; its row as of `step.Steps`, of this worker only."""
        count, metrics = tf.reduce_sum(batch.weights), keras_metrics.states(self.model)
        self._draw_anew(batch)
        batch = step.trimmed(self.spec, batch)
        before = [tf.identity(variable.value) for variable in metrics]
        logs, _ = self._synchronous.train_step(batch.data, count / batch.total)
        moved = [tf.reshape(tf.cast(variable.value - value, tf.float32), [-1]) for variable, value in zip(metrics, before, strict=True)]
        for variable, value in zip(metrics, before, strict=True):
            variable.assign(value)
        tracked = self.model.get_metrics_result()
        if keras_metrics.loss_count(self.model) is not None and not self._synchronous.tracks_loss:
            del tracked["loss"]
        means = {name: value for name, value in logs.items() if name not in tracked}
        self.means = list(means)
        pairs = [tf.stack([tf.reduce_mean(tf.cast(value, tf.float32)) * count, count]) for value in means.values()]
        return tf.concat([tf.stack([batch.asks, count]), *moved, *pairs], axis=0)

    def total(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows of several steps, summed over all workers."""
        return self._all_reduce([rows])[0]

    def _draw_anew(self, batch: Batch) -> None:
        """Random generators start each step from the seed, the step and the worker, so that a resumed run draws the same."""
        for variable, first in self._seeds:
            variable.assign(tf.constant(first) + tf.cast(step.offset(self._cluster.member.rank, batch.number), first.dtype))
