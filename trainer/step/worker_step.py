"""Inner loop of training: one traced call runs several synchronous steps and returns to Python once.

Each worker's gradient is that of the sum of its local losses, divided by the global batch size. Summed over the workers,
this is the gradient of the mean over all images, so uneven local batches are weighted exactly.
"""

import abc
import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.common.patching import replaced
from trainer.data.batch import Batch
from trainer.data.spec import Leaf, Spec, mapped, of_images
from trainer.keras_step import additive, keras_metrics, rehearsal, whole_batch
from trainer.keras_step.mixed_processors import ALONE, FromChief
from trainer.keras_step.optimizer import Rule, penalties_apart
from trainer.models.compiled_model import CompiledModel
from trainer.network.cluster import Cluster
from trainer.reduction import chain, method
from trainer.reduction.chain import Chain, Stopwatch
from trainer.step.batch_arrays import data_signature, signature, trimmed
from trainer.step.testing import change_of, flattened, test_sums

SEEDS_APART = 1_000_003
"""Distance between the seeds of two devices' generators."""
DRAWS = 256
"""Most calls of a generator per step."""


def _same(data: Any) -> Any:
    return data


@dataclass(frozen=True)
class Local:
    """A worker's computation in a step before anything is sent; called in replica context.

    A worker sends `[sums, *gradients, *statistics]`: a row of `StepSums`, the gradients of its part of the mean loss over the global
    batch, and the change of the model's moving statistics (BatchNormalization's). The latter are weighted like the gradients, so they
    stay equal on all workers. Each device normalises with the statistics of its own part of the batch.
    """

    cluster: Cluster
    model: keras.Model
    """Compiled."""
    spec: Spec
    """Specification of the examples that a step is fed."""
    augment: Callable[[Batch], Any] = operator.attrgetter("data")
    """Returns the data that the model sees."""
    validated: Spec | None = None
    """Specification of the examples that validation is fed, if different."""
    as_validated: Callable[[Any], Any] = _same
    """Returns the data that the model sees in validation."""
    l2_in_update: bool = True
    """True if L2 penalties of weights are part of the update; otherwise they are part of the loss, as in Keras' `fit`."""
    placements: rehearsal.Placements | None = None
    """Placements of layers, if the step must equal one worker's; None: each worker has its own batch statistics and random numbers."""

    def __call__(self, batch: Batch) -> list[tf.Tensor]:
        """`[sums, *gradients, *statistics]` for this device's part of the worker's batch."""
        batch = trimmed(self.spec, batch)
        if self.cluster.devices == 1:
            return self.forward_backward(batch)
        count, device = tf.shape(batch.weights)[0], self.cluster.device()
        first, last = count * device // self.cluster.devices, count * (device + 1) // self.cluster.devices
        # With fewer images than devices, a device without an image takes one of weight 0.
        start = tf.minimum(first, count - 1)
        mine = slice(start, tf.maximum(last, start + 1))
        counts = tf.cast(last > first, tf.float32)
        data, weights, places = mapped(lambda array: array[mine], batch[:3])
        return self.forward_backward(batch._replace(data=data, weights=weights * counts, places=places))

    def forward_backward(self, batch: Batch) -> list[tf.Tensor]:
        """`[sums, *gradients, *statistics]` for a whole batch."""
        model, count, data = self.model, tf.reduce_sum(batch.weights), self.augment(batch)
        first = batch.places[0]
        rows = whole_batch.Rows(tf.cast(batch.total, first.dtype), first, first + tf.cast(count, first.dtype))
        part = additive.StepByRows(model, self.cluster.group, rows, None if self.placements is None else self.placements.layout)
        fraction = tf.cast(part.fraction, count.dtype)
        scope = keras.StatelessScope(self._seeds(batch), collect_losses=True)
        for variable in model.trainable_variables:
            # Included for its regularizer; not as a tensor, whose use the gradient tape would not see.
            scope.state_mapping[id(variable)] = variable.value
        with (
            penalties_apart(model) if self.l2_in_update else contextlib.nullcontext(),
            replaced(model, "get_metrics_result", dict),
            # Layers that see the whole batch are equal on all workers, and change when Keras changes them.
            scope if self.placements is None else contextlib.nullcontext(),
        ):
            added = additive.Contribution.of(model, part, model.train_step, data)
        # A model may disconnect weights from its loss (stop_gradient): they stay unchanged.
        found = {id(variable): gradient for gradient, variable in zip(added.gradients, added.variables, strict=True)}
        gradients = [_dense(found[id(variable)], variable) for variable in model.trainable_variables]
        # Flat, because a reduction may round or compress anything with several dimensions.
        kept = [tf.reshape(_fraction_of(change_of(scope, variable), fraction), [-1]) for variable in self.statistics]
        sums = tf.concat([tf.stack([batch.asks, count]), *flattened(added.moved)], axis=0)
        return [sums, *gradients, *kept]

    @functools.cached_property
    def forward_backward_call(self) -> Callable[..., Any]:
        """See `make_forward_backward_call`."""
        return make_forward_backward_call(self)

    @property
    def seeds(self) -> list[tf.Variable]:
        """States of the model's random generators, `[2]` each, if results do not depend on the number of workers."""
        return [] if self.placements is None else [variable.value for variable in CompiledModel(self.model).seeds]

    @property
    def statistics(self) -> list[keras.Variable]:
        """Variables of the model's statistics that workers share."""
        return CompiledModel(self.model).statistics if self.placements is None else []

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the arrays that a worker sends; see the function `shapes`."""
        return shapes(self.model, self.statistics)

    def test(self, data: tuple[Any, ...], logs: keras_metrics.StepLogs | None = None) -> tf.Tensor:
        """The `test_sums` of a validation batch."""
        return test_sums(self.model, not self.l2_in_update, self.as_validated(data), self.placements is not None, logs)

    @property
    def test_signature(self) -> list[Any]:
        """Signature of `test`, for tracing."""
        return [data_signature(self.validated or self.spec)]

    def _seeds(self, batch: Batch) -> list[tuple[keras.Variable, tf.Tensor]]:
        """The state of each of the model's random generators: its initial state, offset per step and device."""
        return [
            (variable, variable.value + tf.cast(_offset(self.cluster.replica(), batch.number), variable.dtype))
            for variable in CompiledModel(self.model).seeds
        ]


def _offset(replica: Any, number: tf.Tensor) -> tf.Tensor:
    """Offset of a device from a random generator's initial state at a step, `[2]` int64."""
    return tf.stack([tf.cast(replica, tf.int64) * SEEDS_APART, tf.cast(number, tf.int64) * DRAWS])


def _dense(gradient: Any, variable: keras.Variable) -> tf.Tensor:
    """A gradient as one tensor: zeros if there is none."""
    if gradient is None:
        return tf.zeros(variable.shape, variable.dtype)
    return tf.convert_to_tensor(gradient.local if isinstance(gradient, whole_batch.SparseGradient) else gradient)


def compile_classifier(model: keras.Model, soft: bool = False) -> keras.Model:
    """Compile a model that returns logits with the classifier's loss and metric; the optimizer only hands over gradients.

    Args:
        model: classifier of images.
        soft: whether labels are probabilities `[classes]`; the most probable class then counts as the right one.
    """
    losses, metrics = keras.losses, keras.metrics
    loss = (losses.CategoricalCrossentropy if soft else losses.SparseCategoricalCrossentropy)(from_logits=True)
    accuracy = (metrics.CategoricalAccuracy if soft else metrics.SparseCategoricalAccuracy)(name="accuracy")
    model.compile(optimizer=keras.optimizers.SGD(), loss=loss, metrics=[accuracy], jit_compile=False)
    spec = of_images(model.input_shape[1:])
    build(model, Spec(spec.structure, (spec.leaves[0], Leaf("label", "float32", model.output_shape[1:]))) if soft else spec)
    return model


def build(model: keras.Model, spec: Spec) -> None:
    """Create the variables that Keras creates when it first sees data: weights, metrics, and a compiled model's optimizer variables."""
    own, optimizer = CompiledModel(model).overridden(), model.optimizer
    # The model's own step builds the optimizer with the variables that it trains.
    leaves_it = "train_step" in own and isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built
    try:
        with replaced(optimizer, "built", True) if leaves_it else contextlib.nullcontext():
            model._symbolic_build(data_batch=spec.pack([keras.KerasTensor((None, *leaf.shape), leaf.dtype) for leaf in spec.leaves]))
    except Exception:
        # Such a step may apply the loss to values other than y.
        if not own:
            raise


def _fraction_of(moved: tf.Tensor, fraction: tf.Tensor) -> tf.Tensor:
    """A worker's part of a change of the statistics; whole numbers, such as a count of steps, are divided as floats."""
    part = moved if moved.dtype.is_floating else tf.cast(moved, tf.float32)
    return part * tf.cast(fraction, part.dtype)


def _as_moved(moved: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The sum of all workers' parts of a change, in the variable's type."""
    return moved if moved.dtype == dtype else tf.cast(tf.round(moved), dtype)


class Steps(abc.ABC):
    """The synchronous steps of a model, as `make_train_call` repeats them."""

    local: Local
    from_chief: FromChief
    """Switch by which all workers take the chief's weights after each step."""
    memory: Sequence[Any] = ()
    """Variables that differ between workers: see `reduction.Method`."""
    logs: keras_metrics.StepLogs | None = None
    """Logs of the model's own step, known once it is traced; None: Keras' own step, which returns its metrics."""
    feeds_all = False
    """True if each worker is fed the whole batch."""
    undoable = False
    """True if a step changes only `variables` and `memory`, so that a step on made-up rows can be undone."""
    adds_up = True
    """True if only the optimizer's update is computed alike on all workers."""

    @property
    @abc.abstractmethod
    def optimizers(self) -> list[Any]:
        """The Keras optimizers that the model's function made."""

    @property
    @abc.abstractmethod
    def rate(self) -> float | None:
        """The current learning rate of a compiled model's own optimizer; None: each step is given one."""

    @property
    @abc.abstractmethod
    def slots(self) -> list[Any]:
        """TensorFlow variables that optimizers keep."""

    @property
    def variables(self) -> list[Any]:
        """TensorFlow variables that training changes and a state stores; known once the step is traced."""
        every = [*(weight.value for weight in self.local.model.weights), *self.local.seeds, *self.slots]
        return list({id(variable): variable for variable in every}.values())

    @abc.abstractmethod
    def run(self, rate: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Take a step in a traced function, outside replica context; return its row of `StepSums`, float32."""

    def total(self, sums: tf.Tensor) -> tf.Tensor:
        """The table of `StepSums` of several steps, summed over all workers if a step has not done so."""
        return sums

    @property
    def uncompressed(self) -> "Steps":
        """These steps with uncompressed gradients."""
        return self

    def profiled(self) -> "ProfiledCall | None":
        """A call that times the parts of a step, if it has parts."""
        return None


@dataclass(frozen=True)
class Parts(Steps):
    """Steps in separate parts, one of which is any reduction; each function is called in replica context."""

    local: Local
    optimizer: Rule
    reduction: Chain
    from_chief: FromChief = ALONE
    memory: Sequence[Any] = ()
    undoable = True

    @property
    def optimizers(self) -> list[Any]:
        """See `Steps`."""
        return [] if self.local.l2_in_update else [self.local.model.optimizer]

    @property
    def rate(self) -> float | None:
        """See `Steps`."""
        return self.optimizer.rate

    @property
    def slots(self) -> list[Any]:
        """See `Steps`."""
        return list(self.optimizer.slots)

    @property
    def uncompressed(self) -> "Parts":
        """See `Steps`."""
        cluster = self.local.cluster
        return dataclasses.replace(self, reduction=chain.make_chain(method.plain(), cluster.group.sum, cluster.direct))

    def profiled(self) -> "ProfiledCall":
        """See `Steps`."""
        return ProfiledCall(self)

    def run(self, rate: tf.Tensor, batch: Batch) -> tf.Tensor:
        """See `Steps`."""
        return in_replica(self.local.cluster, self._step, rate, batch)

    def _step(self, rate: tf.Tensor, batch: Batch) -> tf.Tensor:
        return self.apply(self.reduction(self.reduction.take(self.local(batch))), rate)

    def apply(self, values: list[Any], rate: tf.Tensor) -> tf.Tensor:
        """Update the weights and the model's statistics; return the global sums."""
        (sums, *others), model = values, self.local.model
        count = len(model.trainable_variables)
        self.optimizer.apply(others[:count], rate)
        for variable, moved in zip(self.local.statistics, others[count:], strict=True):
            move = _as_moved(tf.reshape(moved, variable.shape), tf.as_dtype(variable.dtype))
            tf.raw_ops.AssignAddVariableOp(resource=variable.value.handle, value=move)
        self.from_chief.take([variable.value for variable in CompiledModel(model).changing])
        # Only these sums outlive the step; the step after the next reuses their memory.
        return tf.raw_ops.DeepCopy(x=sums)


def in_replica(cluster: Cluster, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a traced step; return its result on this worker's first device."""
    return cluster.local(cluster.run(function, arguments))


def make_forward_backward_call(local: Local, take: Callable[[list[Any]], list[Any]] = list) -> Callable[..., Any]:
    """Make a call of `local` alone, from Python with one `Batch` of any size; `take` converts its result to a reduction's input."""

    def compute(batch: Batch) -> list[Any]:
        return take(local(batch))

    return _traced(local.cluster, compute, [signature(local.spec, 0)])


def shapes(model: keras.Model, shared: Sequence[keras.Variable] | None = None) -> list[tuple[int, ...]]:
    """Shapes of the gradients, then of the model's statistics that workers share, flattened: only gradients may be compressed."""
    kept = [(variable.value.shape.num_elements(),) for variable in (CompiledModel(model).statistics if shared is None else shared)]
    return [*(tuple(variable.shape) for variable in model.trainable_variables), *kept]


def make_train_call(steps: Steps) -> Any:
    """Make a function that trains on a `Batch` of several steps with rates `[steps]` float32, and returns `StepSums.table`."""
    # As in Keras' `fit`, nothing here depends on autograph; its conversion would take as long as tracing.
    run = tf.autograph.experimental.do_not_convert(steps.run)

    @tf.function(input_signature=[signature(steps.local.spec, 1), tf.TensorSpec([None], tf.float32)], autograph=False)
    def call(batches: Batch, rates: tf.Tensor) -> tf.Tensor:
        count = tf.shape(rates)[0]

        def step(index: tf.Tensor, sums: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            return index + 1, sums.write(index, run(rates[index], batches.at(index)))

        sums = tf.TensorArray(tf.float32, size=count, infer_shape=True)
        _, sums = tf.while_loop(lambda index, _: index < count, step, (0, sums), parallel_iterations=1, maximum_iterations=count)
        return steps.total(sums.stack())

    return call


class ProfiledCall:
    """Call of one step whose parts run one after the other, each awaited; all workers call it at the same step.

    The resulting weights are bit for bit those of `make_train_call`. Parts are timed from Python because TensorFlow's own
    clock (`tf.timestamp`) refuses to run with deterministic ops.
    """

    def __init__(self, parts: Parts):
        """Trace nothing yet."""
        local, sent = parts.local, parts.reduction
        self._forward_backward = make_forward_backward_call(local, sent.take) if sent.factored else local.forward_backward_call
        self._cluster = local.cluster
        self._reduction = sent.profiled(functools.partial(_traced, self._cluster))
        self._apply = _traced(self._cluster, parts.apply)
        self.traced = False
        """True after the first call, which traces."""

    def __call__(self, batches: Batch, rates: np.ndarray) -> tuple[np.ndarray, dict[str, float] | None]:
        """Train one step as `make_train_call` does; also return the seconds of each part of `Stopwatch`, None for the first call."""
        watch = Stopwatch(self._cluster.settle)
        batch = batches.at(0)
        values = self._reduction(watch.time("forward_backward", self._forward_backward, batch), watch)
        sums = watch.time("apply", self._apply, values, rates[0])
        seconds, self.traced = watch.seconds if self.traced else None, True
        return self._cluster.local(sums).numpy()[np.newaxis], seconds


def _traced(cluster: Cluster, part: Callable[..., Any], signature: list[Any] | None = None) -> Callable[..., Any]:
    # Without separate names, TensorFlow takes all parts for one function that is retraced repeatedly, and warns.
    @functools.wraps(part)
    def call(*arguments: Any) -> Any:
        return cluster.run(part, arguments)

    return tf.function(call, input_signature=signature, autograph=False)


def make_test_call(local: Local, logs: keras_metrics.StepLogs | None = None) -> Any:
    """Make a traced function of a batch's data without collectives, called on this worker: see `test_sums`."""
    run = local.cluster.run if not local.cluster.on_host else lambda function, arguments: function(*arguments)

    # In replica context, a mirrored metric's state is this worker's; elsewhere TensorFlow would sum it over all.
    def call(data: tuple[Any, ...]) -> Any:
        return run(functools.partial(local.test, logs=logs), [data])

    return tf.function(call, input_signature=local.test_signature, autograph=False)
