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

from trainer import applying, global_loss, keras_metrics
from trainer.collective import AllReduce
from trainer.replacing import replaced
from trainer.step import as_moved, shared, statistics


@dataclass
class Synchronous:
    """A compiled model whose steps are those of all workers."""

    model: keras.Model
    all_reduce: AllReduce
    optimizers: list[Any] = field(default_factory=list)
    """Those that have applied gradients, in order of their first step."""
    tracks_loss: bool = False
    """Whether the latest step updated the tracker of the loss that Keras gives every model."""

    def __post_init__(self) -> None:
        """Keep the model's own steps, which `lockstep.distribute` replaces."""
        self._train_step, self._test_step = self.model.train_step, self.model.test_step

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
        step = _Step(self, share, list(also))
        with self._counting(share), step.traced():
            logs: dict[str, Any] = self._train_step(data)
            step.finish()
        self.tracks_loss = step.tracks_loss
        return logs, step.sums

    def test_step(self, data: Any, share: tf.Tensor) -> dict[str, Any]:
        """The model's own `test_step` on this worker's part of the batch, as `train_step`; the model's logs, of this worker."""
        with contextlib.ExitStack() as summed:
            summed.enter_context(self._counting(share))
            if not global_loss.overridden(self.model):
                summed.enter_context(global_loss.over_all_workers(self.model, share, self.all_reduce))
            logs: dict[str, Any] = self._test_step(data)
        return logs

    @contextlib.contextmanager
    def _counting(self, share: tf.Tensor) -> Iterator[None]:
        """Leave the metrics as they were if this worker has no rows: a placeholder counts in none."""
        metrics = keras_metrics.states(self.model)
        before = [tf.identity(variable.value) for variable in metrics]
        yield
        for variable, value in zip(metrics, before, strict=True):
            variable.assign(tf.where(share > 0, variable.value, value))


class _Step:
    """One step while it is traced."""

    def __init__(self, synchronous: Synchronous, share: tf.Tensor, also: list[tf.Tensor]):
        self._synchronous, self._share, self._also = synchronous, share, also
        self.sums: list[tf.Tensor] = []
        # Where the loss has the global denominators, its gradients are this worker's part of the whole; else they are means.
        self._exact = not global_loss.overridden(synchronous.model)
        self._kept = {id(variable): variable for variable in statistics(synchronous.model)}
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
        moves = [shared(self._kept[key].value - self._before[key], self._share) for key in changed]
        also, self._also = self._also, []
        summed = iter(self._synchronous.all_reduce([*also, *gradients, *moves]))
        self.sums += [next(summed) for _ in also]
        sums = [next(summed) for _ in gradients]
        for key, move in zip(changed, summed, strict=True):
            self._before[key] += as_moved(move, self._before[key].dtype)
            self._kept[key].value.assign(self._before[key])
        return sums
