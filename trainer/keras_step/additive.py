"""Steps of Keras' own that add up over rows: each worker computes its rows' part, and one exchange sums gradients and metrics.

Inside, each worker's loss is its part of the loss of the whole batch: the sum of a loss's values over all of the batch's values, or, where
a mask or weights say what counts, over what counts on all workers. So the workers' gradients add up to those of the whole batch, and so do
the states of nearly all of Keras' metrics, which are sums.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from keras.src.losses import loss as keras_loss
from keras.src.losses import losses as keras_losses
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers.trainer import Trainer

from trainer.keras_step import whole_batch
from trainer.keras_step.whole_batch import SparseGradient
from trainer.models.compiled_model import CompiledModel
from trainer.network import all_reduce

MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def linear(optimizer: Any) -> bool:
    """Return whether an update is the same for the sum of a variable's gradients and for repeated rows of it, one by one."""
    clips = (optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm) if type(optimizer) is keras.optimizers.SGD else (True,)
    return not any(clips)


class StepByRows(whole_batch.Step):
    """A step of which each worker has its own rows from beginning to end."""

    def __init__(
        self,
        model: keras.Model,
        group: all_reduce.Group,
        rows: whole_batch.Rows,
        layout: whole_batch.Layout | None = None,
    ):
        """`layout`: as of `Step`; None: batch statistics and random numbers are each worker's own."""
        super().__init__(group, layout or whole_batch.Layout())
        self.replicated = layout is not None and group.workers == 1
        self._mine, self.rows, self._latest = rows, None if layout is None or self.replicated else rows, rows
        self.fraction = tf.cast(rows.stop - rows.start, tf.float64) / tf.cast(rows.count, tf.float64)
        """This worker's rows divided by those of the whole batch."""
        self.taken: list[Any] = []
        """Gradients and their variables, taken from the optimizer instead of applied."""
        self.trackers = {id(one) for one in (model._compile_loss.metrics if model._compile_loss is not None else ())}

    def outermost(self, call: Callable[..., Any], layer: keras.Layer, arguments: Any) -> Any:
        """See `Step`: its arguments are this worker's rows already."""
        return call(layer, *arguments[0], **arguments[1])

    def gradients(self, local: Sequence[Any]) -> list[Any]:
        """See `Step`: they are summed later."""
        return list(local)

    def part_of(self, data: Any) -> Any:
        """This worker's rows of a batch."""
        whole_batch.check_rows(list(filter(whole_batch.leads, tf.nest.flatten(data))), self._mine.count)
        return self._mine.of_each(data)

    def by_fraction(self, tensor: tf.Tensor) -> tf.Tensor:
        """A worker's part of what all have alike."""
        return tensor * tf.cast(self.fraction, tensor.dtype)

    def if_any(self, tensor: tf.Tensor) -> tf.Tensor:
        """Zeros where the rows are a placeholder."""
        return tensor * tf.cast(tf.sign(self.fraction), tensor.dtype)


def _apart() -> StepByRows | None:
    """The step, where it is one of this worker's rows."""
    step = whole_batch.current()
    return step if isinstance(step, StepByRows) and not step.replicated else None


@dataclass
class Contribution:
    """Contribution of a worker's rows to a step, or of all rows together."""

    moved: list[tf.Tensor]
    """Changes of the metrics' states."""
    gradients: list[Any]
    """Dense, sparse in parts, or None."""
    variables: list[keras.Variable]
    """Variables of the gradients."""

    @classmethod
    def of(cls, model: keras.Model, step: StepByRows, own: Callable[[Any], Any], data: Any) -> "Contribution":
        """Run a model's own step on some rows; its metrics and weights stay as they are."""
        whole_batch.install(HOOKS)
        with CompiledModel(model).metric_changes() as moved, step():
            own(data)
        # A placeholder counts in no metric.
        counted = [step.if_any(one) for one in moved]
        gradients = [step.parted(one) if isinstance(one, tf.IndexedSlices) else one for one, _ in step.taken]
        return cls(counted, gradients, [variable for _, variable in step.taken])

    def summed(self, group: all_reduce.Group, also: Sequence[tf.Tensor] = ()) -> tuple["Contribution", list[tf.Tensor]]:
        """The sum over all workers, and that of other tensors; in one exchange, and one more for sparse gradients."""
        given = [one for one in self.gradients if one is not None]
        dense = [part for one in given for part in (one.shared if isinstance(one, SparseGradient) else [tf.convert_to_tensor(one)])]
        every = iter(group.sum([*also, *self.moved, *dense]))
        others, moved = [next(every) for _ in also], [next(every) for _ in self.moved]
        parts = [part for one in given if isinstance(one, SparseGradient) for part in one.of_rows]
        rows = iter(group.concatenated(parts) if parts else ())

        def total(one: Any) -> Any:
            return None if one is None else one.joined(rows, every) if isinstance(one, SparseGradient) else next(every)

        return Contribution(moved, [total(one) for one in self.gradients], self.variables), others


class Additive:
    """A model's own step, each worker with its rows."""

    def __init__(self, model: keras.Model, own: Callable[[Any], Any], layout: whole_batch.Layout):
        """`own`: the model's `train_step` or `test_step`; `layout` as of `Step`."""
        self.model, self.own, self.layout = model, own, layout
        self.keeps = True
        """True if variables change."""

    @property
    def variables(self) -> list[keras.Variable]:
        """Weights, and the states of metrics."""
        return [*self.model.trainable_variables, *CompiledModel(self.model).metric_states]

    def added(self, group: all_reduce.Group, data: Any, shares: Sequence[int] | None = None) -> Contribution:
        """Contribution of this worker's rows of a batch to a step; `shares`: of the rows by rank, by default equal ones."""
        step = self._step(group, data, shares)
        return Contribution.of(self.model, step, self.own, step.part_of(data))

    def alone(self, data: Any) -> Contribution:
        """Contribution of a whole batch, as Keras computes it."""
        step = self._step(all_reduce.Alone(), data)
        with step.everything():
            return Contribution.of(self.model, step, self.own, data)

    def _step(self, group: all_reduce.Group, data: Any, shares: Sequence[int] | None = None) -> StepByRows:
        step = StepByRows(self.model, group, whole_batch.Rows.of(group, shares, whole_batch.first(whole_batch.leading(data))), self.layout)
        step.keeps = self.keeps
        return step

    def together(
        self,
        group: all_reduce.Group,
        data: Any,
        adds_up: bool,
        shares: Sequence[int] | None = None,
        static: int | None = None,
        marks: Sequence[tf.Tensor] = (),
        check: Callable[..., contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> Any:
        """Run the step on all workers, which have the same batch, and return its result.

        Args:
            group: the workers.
            data: the whole batch.
            adds_up: whether the step is computed by rows; else layer by layer.
            shares: of the batch's rows by rank; by default equal ones.
            static: the batch's rows, where tensors have a known first dimension.
            marks: tensors summed with the first exchange.
            check: takes these sums before anything changes; the context of what follows.
        """
        if adds_up:
            every, sums = self.added(group, data, shares).summed(group, marks)
            with check(*sums):
                return self.finish(every)
        with check(*(group.sum(marks) if marks else ())), whole_batch.Step(group, self.layout, static, shares)():
            # As new tensors, that the check comes before.
            return self.own(tf.nest.map_structure(lambda leaf: None if leaf is None else tf.identity(leaf), data))

    def finish(self, every: Contribution) -> dict[str, Any]:
        """Update weights and metrics; the step's logs."""
        if every.variables:
            self.model.optimizer.apply_gradients(zip(every.gradients, every.variables, strict=True))
        for variable, moved in zip(CompiledModel(self.model).metric_states, every.moved, strict=True):
            variable.assign(variable.value + moved)
        logs: dict[str, Any] = self.model.get_metrics_result()
        return logs


# --- what Keras does differently in such a step


def _applying(apply_gradients: Callable[..., Any], optimizer: Any, grads_and_vars: Any) -> Any:
    """`BaseOptimizer.apply_gradients`: only after the sum."""
    step = whole_batch.current()
    if not isinstance(step, StepByRows):
        return apply_gradients(optimizer, grads_and_vars)
    step.taken += list(grads_and_vars)
    return optimizer._iterations


def _reducing(
    reduce: Callable[..., Any], values: Any, sample_weight: Any = None, mask: Any = None, reduction: str = MEANS[0], dtype: Any = None
) -> Any:
    """`reduce_weighted_values`: a worker's part of a loss."""
    step = _apart()
    if step is None:
        return reduce(values, sample_weight, mask, reduction, dtype)
    if step.rows is not None and not len(values.shape):
        raise ValueError("a loss is one number for all rows")
    counts = mask is not None or (reduction == "mean_with_sample_weight" and sample_weight is not None)
    if reduction not in MEANS or not counts:
        local = reduce(values, sample_weight, mask, reduction, dtype)
        # A sum is a part already, but for a placeholder's.
        return step.if_any(local) if reduction == "sum" and len(values.shape) else step.by_fraction(local)
    numerator = step.if_any(reduce(values, sample_weight, mask, "sum", dtype))
    here = step.if_any(_denominator(values, sample_weight, mask, reduction, numerator.dtype))
    (everywhere,) = step.group.sum([tf.reshape(here, [1])])
    return ops.divide_no_nan(numerator, everywhere[0])


def _denominator(values: Any, sample_weight: Any, mask: Any, reduction: str, kind: Any) -> tf.Tensor:
    """Divisor of a loss's values, for this worker's rows."""
    if reduction == "mean_with_sample_weight":
        return ops.sum(ops.cast(keras_loss.apply_mask(sample_weight, mask, dtype=kind, reduction=reduction), kind))
    # As in Keras, whose mask may have other dimensions than the values.
    valid, masked = ops.sum(ops.cast(mask, kind)), ops.cast(ops.size(mask), kind)
    return ops.divide_no_nan(valid * ops.cast(ops.size(ops.convert_to_tensor(values)), kind), masked)


def _converting(convert: Callable[..., Any], y_true: Any) -> Any:
    """`convert_binary_labels_to_hinge`: 0 becomes -1 where no label of the batch is another than 0 and 1."""
    if (step := _apart()) is None or step.rows is None:
        return convert(y_true)
    other = tf.reduce_any(tf.logical_and(tf.not_equal(y_true, 0), tf.not_equal(y_true, 1)))
    (others,) = step.group.sum([step.if_any(tf.cast(other, tf.float32))[tf.newaxis]])
    return tf.where(others[0] > 0, y_true, 2 * y_true - 1)


def _unscaling(unscale: Callable[..., Any], loss: Any) -> Any:
    """`unscale_loss_for_distribution`: what a tracker sees, and multiplies by the rows."""
    step = _apart()
    return unscale(loss) if step is None else tf.math.divide_no_nan(loss, tf.cast(step.fraction, loss.dtype))


def _scaling(scale: Callable[..., Any], loss: Any) -> Any:
    """`scale_loss_for_distribution`: by the number of a strategy's replicas, which takes equal parts for granted."""
    return scale(loss) if _apart() is None else loss


def _aggregating(aggregate: Callable[..., Any], model: Any, loss: Any) -> Any:
    """`Trainer._aggregate_additional_loss`: regularizers and added losses, which all workers have alike."""
    step, whole_loss = _apart(), aggregate(model, loss)
    return whole_loss if step is None else step.by_fraction(whole_loss)


def _tracking(update: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """`Mean.update_state`: Keras gives an output's loss no weight where it doesn't know the size of a batch; all workers' are 1 in sum."""
    step = _apart()
    if step is None or sample_weight is not None or id(metric) not in step.trackers:
        return update(metric, values, sample_weight)
    return update(metric, values, step.fraction)


HOOKS: whole_batch.Hooks = (
    (BaseOptimizer, "apply_gradients", _applying),
    (keras_loss, "reduce_weighted_values", _reducing),
    (keras_losses, "convert_binary_labels_to_hinge", _converting),
    (keras_loss, "scale_loss_for_distribution", _scaling),
    (keras_loss, "unscale_loss_for_distribution", _unscaling),
    (Trainer, "_aggregate_additional_loss", _aggregating),
    (keras.metrics.Mean, "update_state", _tracking),
)
"""As `whole.HOOKS`."""
