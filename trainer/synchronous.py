"""Synchronous training of any Keras model: its optimizers apply the gradients of all workers' batches together.

Gradients are summed where an optimizer applies them, whichever `train_step` computed them (the idea of Horovod's DistributedOptimizer:
Sergeev, Del Balso 2018, arXiv:1802.05799). So clipping, accumulation, moving averages, decay and loss scaling follow the sum, as they
follow the gradient of a large batch on one worker, and every worker computes the same update.

All of this happens while TensorFlow traces a step; afterwards Keras is as it was.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from trainer import applying, global_loss, keras_metrics, step
from trainer.cluster import Cluster
from trainer.collective import AllReduce
from trainer.data.pipeline import Batch
from trainer.data.spec import Spec
from trainer.optimizer import rate_of
from trainer.replacing import replaced


@dataclass
class Synchronous:
    """A compiled model whose steps are those of all workers."""

    model: keras.Model
    all_reduce: AllReduce
    optimizers: list[Any] = field(default_factory=list)
    """Those that have applied gradients, in order of their first step."""
    tracks_loss: bool = False
    """Whether the latest step updated the tracker of the loss that Keras gives every model."""

    def build(self, data: Any) -> None:
        """Create what Keras creates when it first sees data: weights, metrics, the compiled optimizer's variables."""
        self.model._symbolic_build(data_batch=data)

    def train_step(self, data: Any, share: tf.Tensor, also: Sequence[tf.Tensor] = ()) -> tuple[dict[str, Any], list[tf.Tensor]]:
        """The model's own `train_step` on this worker's part of the batch, traced with sums over all workers.

        Args:
            data: what `train_step` takes.
            share: scalar, this part's rows divided by those of the whole batch; 0 if this worker has none (then `data` is a placeholder).
            also: tensors to sum in the same exchange.

        Returns:
            The model's logs, of this worker, and the sums of `also`.
        """
        metrics = keras_metrics.states(self.model)
        before = [tf.identity(variable.value) for variable in metrics]
        current = _Step(self, share, list(also))
        with current.traced():
            logs: dict[str, Any] = self.model.train_step(data)
            current.finish()
        self.tracks_loss = current.tracks_loss
        for variable, value in zip(metrics, before, strict=True):
            # A placeholder counts in no metric.
            variable.assign(tf.where(share > 0, variable.value, value))
        return logs, current.sums


class Program:
    """A model that trains with its own `train_step`, and the optimizers in it: what `step.make_train_call` runs."""

    def __init__(self, cluster: Cluster, model: keras.Model, spec: Spec):
        """Take a compiled model, built outside the strategy's scope, in a connected cluster whose workers have one device each."""
        self.model, self.spec, self._cluster = model, spec, cluster
        all_reduce: AllReduce = cluster.all_reduce if cluster.member.workers > 1 else list
        self._synchronous, self._all_reduce = Synchronous(model, all_reduce), all_reduce
        self._seeds = [(variable, variable.numpy()) for variable in step.seeds(model)]
        self.means: list[str] = []
        """Names of what `train_step` returns besides metrics: means over all workers' examples; known once it is traced."""

    @property
    def variables(self) -> list[tf.Variable]:
        """What training changes, once it is traced: the weights, and the optimizers' variables."""
        optimizers = [variable for optimizer in self._synchronous.optimizers for variable in optimizer.variables]
        return [variable.value for variable in {id(one): one for one in [*self.model.weights, *optimizers]}.values()]

    @property
    def rate(self) -> float:
        """The learning rate of the first optimizer; 0 if there is none."""
        return next((rate_of(optimizer) for optimizer in self._synchronous.optimizers), 0.0)

    def run(self, rate: tf.Tensor, batch: Batch) -> tf.Tensor:  # noqa: ARG002 - its optimizers have rates of their own
        """A step; its row as of `step.Steps`, of this worker only."""
        count, metrics = tf.reduce_sum(batch.weights), keras_metrics.states(self.model)
        self._draw_anew(batch)
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
        return tf.concat([tf.stack([batch.stop, count]), *moved, *pairs], axis=0)

    def total(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows of several steps, summed over all workers."""
        return self._all_reduce([rows])[0]

    def _draw_anew(self, batch: Batch) -> None:
        """Random generators start each step from the seed, the step and the worker, so that a resumed run draws the same."""
        for variable, first in self._seeds:
            variable.assign(tf.constant(first) + tf.cast(step.offset(self._cluster.member.rank, batch.number), first.dtype))


class _Step:
    """One step while it is traced."""

    def __init__(self, synchronous: Synchronous, share: tf.Tensor, also: list[tf.Tensor]):
        self._synchronous, self._share, self._also = synchronous, share, also
        self.sums: list[tf.Tensor] = []
        # Where the loss has the global denominators, its gradients are this worker's part of the whole; else they are means.
        self._exact = not global_loss.overridden(synchronous.model)
        self._kept = {id(variable): variable for variable in step.statistics(synchronous.model)}
        self._before = {key: tf.identity(variable.value) for key, variable in self._kept.items()}
        self._changed: dict[int, None] = {}
        self.tracks_loss = False

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Sum what is computed inside over all workers."""
        with contextlib.ExitStack() as patched:
            patched.enter_context(applying.instead(self._apply))
            for variable in self._kept.values():
                patched.enter_context(replaced(variable, "_direct_assign", self._noting(variable, variable._direct_assign)))
            if (count := keras_metrics.loss_count(self._synchronous.model)) is not None:
                patched.enter_context(replaced(count, "_direct_assign", self._noting_loss(count._direct_assign)))
            if self._exact:
                patched.enter_context(global_loss.over_all_workers(self._synchronous.model, self._share, self._synchronous.all_reduce))
            yield

    def _apply(self, optimizer: Any, gradients: list[Any], variables: list[Any] | None, apply: Callable[..., Any]) -> None:
        if optimizer not in self._synchronous.optimizers:
            self._synchronous.optimizers.append(optimizer)
        apply(optimizer, self._sum(gradients), variables)

    def _noting(self, variable: keras.Variable, assign: Callable[..., Any]) -> Callable[..., Any]:
        def noted(value: Any) -> Any:
            self._changed[id(variable)] = None
            return assign(value)

        return noted

    def _noting_loss(self, assign: Callable[..., Any]) -> Callable[..., Any]:
        def noted(value: Any) -> Any:
            self.tracks_loss = True
            return assign(value)

        return noted

    def _sum(self, gradients: Sequence[Any]) -> list[Any]:
        """Gradients summed over all workers, None where there is none; in the same exchange, what the model changed meanwhile."""
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
        mine = dense if self._exact else [gradient * tf.cast(self._share, gradient.dtype) for gradient in dense]
        sums = iter(self._exchange(mine))
        return [None if gradient is None else next(sums) for gradient in gradients]

    def finish(self) -> None:
        """Exchange what the model changed since the last exchange, and what is still to be summed."""
        if self._changed or self._also:
            self._exchange([])

    def _exchange(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """The sums of gradients; statistics move by the mean of the workers' moves, weighted with their shares."""
        changed, self._changed = list(self._changed), {}
        moves = [(self._kept[key].value - self._before[key]) * tf.cast(self._share, self._before[key].dtype) for key in changed]
        also, self._also = self._also, []
        summed = iter(self._synchronous.all_reduce([*also, *gradients, *moves]))
        self.sums += [next(summed) for _ in also]
        sums = [next(summed) for _ in gradients]
        for key, move in zip(changed, summed, strict=True):
            self._before[key] += move
            self._kept[key].value.assign(self._before[key])
        return sums
