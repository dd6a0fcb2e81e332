"""Several workers as one: what is computed outside of layers is of the whole batch, and the same on all workers.

As an array of one program lies on several devices (GSPMD: Xu et al. 2021, arXiv:2105.04663), so does a batch on workers, but only inside
of layers: the outermost call of a layer (a model is one, too) takes this worker's rows of its arguments and gathers the rows of its
outputs. So losses, metrics and a `train_step`, whatever they compute, see what they would see on one worker. The gradients that a tape
returns are summed over the workers at once: so optimizers do, too.

Inside, a layer's rows must not depend on each other. Where Keras' own do, or draw random numbers, hooks account for all rows: batch
normalisation has the statistics of the whole batch, and Dropout the worker's rows of what is drawn for all. Other layers that mix rows, add
losses or count see the whole batch, and all workers compute the same.
"""

import contextlib
import functools
import inspect
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow import random as keras_random
from keras.src.layers.layer import Layer
from keras.src.layers.normalization.batch_normalization import BatchNormalization
from keras.src.layers.preprocessing.text_vectorization import TextVectorization
from keras.src.ops.operation import Operation
from keras.src.random.seed_generator import SeedGenerator
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.eager import backprop_util
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable

from trainer.common.errors import LockstepError
from trainer.common.patching import replaced
from trainer.data.partition import part_bounds
from trainer.network.all_reduce import Group
from trainer.user_code.undo import is_users, places

MIXING = (keras.layers.MelSpectrogram, keras.layers.RandomElasticTransform)
"""Layers of Keras' own that mix rows, which made-up ones may not show: a spectrogram is clipped at the loudest of its batch."""
PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, np.ndarray)
"""Types that a layer may return besides tensors: the same whatever its rows are."""
UNLIKE = "tensors of a batch have different numbers of rows, so which are its rows is not known"
USES = "_lockstep_uses"
"""Attribute of a sparse gradient."""
KNOWN = {"keras", "tensorflow", "trainer"}
"""Packages whose functions, such as activations, treat each row alone."""
Use = Literal["rows", "unique", "common"]
"""Rows of a variable that a step looks up at a place: each row its own, what rows have in common once each, or the same for any rows."""
BYTES = [bytes([code]) for code in range(256)]
_thread = threading.local()
"""`step`: the thread's current `Step`. Workers may be threads."""


class SeesAll(BaseException):
    """A layer must see the whole batch: the step is to be traced again. Keras rewrites a mere Exception on its way."""

    def __init__(self, layer: Layer, why: str):
        super().__init__(f"{layer.name} {why}")
        self.layer = layer


@dataclass
class Layout:
    """How a step of a model lies on workers, as far as it is known."""

    seeing_all: set[Operation] = field(default_factory=set)
    """Layers that are given the whole batch."""
    fixed: dict[Operation, set[int]] = field(default_factory=dict)
    """By layer, first dimensions of what has none of a batch's rows, such as weights, or the nodes of a graph."""
    beside: dict[Operation, set[int]] = field(default_factory=dict)
    """By layer, which of its arguments, flattened, have none of a batch's rows, though the size of their first dimension may look so."""
    kinds: list[tuple[Use, ...]] | None = field(default_factory=list)
    """Uses of each sparse gradient's variable, in the step's order; None: all workers look up the same, of the whole batch."""
    noted: list[list[np.ndarray]] | None = None
    """Look-ups of each sparse gradient's variable on this worker, by use, in a trial."""


class Rows:
    """This worker's rows of a batch: `start` to `stop`, computed with a placeholder where there are none."""

    def __init__(self, count: Any, start: Any, stop: Any):
        """`count`: rows of all workers together."""
        self.count, self.start, self.stop = count, start, stop
        known = isinstance(start, int) and isinstance(stop, int)
        self.computed = max(stop - start, 1) if known else tf.maximum(stop - start, 1)

    @classmethod
    def of(cls, group: Group, shares: Sequence[int] | None, count: Any) -> "Rows":
        """By the workers' shares of a batch, equal ones by default."""
        return cls(count, *part_bounds(count, shares or [1] * group.workers, group.rank))

    def scaled(self, first: Any) -> Any:
        """How many entries a tensor has for each row, by its first dimension on this worker."""
        return first // self.computed

    def take(self, tensor: Any) -> Any:
        """This worker's rows of a tensor, dense, sparse or ragged."""
        if isinstance(tensor, tf.SparseTensor):
            others = [tensor.dense_shape[axis] if size is None else size for axis, size in enumerate(tensor.shape) if axis]
            sizes = tf.stack([tf.cast(size, tf.int64) for size in (self.computed, *others)])
            part = tf.sparse.slice(tensor, tf.stack([tf.cast(self.start, tf.int64), *(0 for _ in others)]), sizes)
            # Its shape, which the slice has forgotten.
            return tf.SparseTensor(part.indices, part.values, sizes)
        return tensor[self.start : self.start + self.computed]

    def of_each(self, data: Any) -> Any:
        """This worker's rows of a batch's tensors that have a first dimension."""
        return tf.nest.map_structure(lambda leaf: self.take(leaf) if leads(leaf) else leaf, data)


class Step:
    """A step of a model on one of several workers, while it is traced, or while it runs."""

    def __init__(self, group: Group, layout: Layout, static: int | None = None, shares: Sequence[int] | None = None):
        """Nothing is exchanged yet.

        Args:
            group: the workers.
            layout: of the model.
            static: rows of the batch, where tensors have a known first dimension.
            shares: of the batch by rank; by default all workers have equal ones.
        """
        self.group, self.rows, self._shares = group, None, shares
        self._layout, self._static = layout, static
        self._latest: Rows | None = None
        self._sparse = itertools.count()
        self.sizes: dict[Operation, set[int]] = {}
        """By layer, known first dimensions of what it draws and normalises for its rows."""
        self.layers: list[Layer] = []
        """Layers whose calls are under way, the innermost last."""
        self.drawing = self.differentiating = self.draws = 0
        self.repeating: set[str] = set()
        """Functions of TensorFlow that draw, and were traced before: Keras' own step would repeat the numbers of that trace."""
        self.penalized: Layer | None = None
        """Whose penalty of the whole batch is added; Keras then adds what it takes for that of these rows."""

    rows: Rows | None
    """Rows of the outermost call, inside of it."""
    replicated = False
    """True if all workers compute the same of the whole batch, as they do inside `everything`."""
    keeps = True
    """True if variables change."""
    drawn: float | None = None
    """Instead of what is random: the place between the least and the largest number, from 0 to 1; None: it is random."""

    @property
    def inner(self) -> Rows:
        """`rows`, inside of an outermost call."""
        assert self.rows is not None
        return self.rows

    def __call__(self) -> contextlib.AbstractContextManager[None]:
        """Take this thread's part in the step."""
        install(HOOKS)
        return within(self)

    # --- between a worker's rows and those of all

    def whole(self, tensor: Any) -> Any:
        """The rows of all workers, of a result of an outermost call."""
        rows = self.inner
        if not _is_tensor(tensor):
            return tensor
        if isinstance(tensor, tf.SparseTensor):
            raise LockstepError("a layer's result is sparse, whose rows can't be gathered; make it dense, as in tf.sparse.to_dense(x)")
        if isinstance(tensor, tf.RaggedTensor):
            return self._gathered_ragged(tensor[: rows.stop - rows.start])
        return self._with_companions(tensor, lambda one: self._gathered(one, rows))

    def _gathered(self, tensor: tf.Tensor, rows: Rows) -> tf.Tensor:
        known = tensor.shape[0] is not None and isinstance(rows.computed, int)
        per_row = rows.scaled(tensor.shape[0] if known else tf.shape(tensor)[0])
        gathered = self._gathered_at(tensor, rows.start * per_row, rows.stop * per_row)
        # A layer may do something else where the size of a batch is not known.
        gathered.set_shape([rows.count * per_row if known else None, *tensor.shape[1:]])
        return gathered

    def _gathered_ragged(self, tensor: tf.RaggedTensor) -> tf.RaggedTensor:
        flat, lengths = tensor.flat_values, self.group.concatenated(list(tensor.nested_row_lengths()))
        start = tf.reduce_sum(self.counts(tf.shape(flat)[0])[: self.group.rank])
        return tf.RaggedTensor.from_nested_row_lengths(self._gathered_at(flat, start, start + tf.shape(flat)[0]), lengths, validate=False)

    def _gathered_at(self, tensor: tf.Tensor, start: Any, stop: Any) -> tf.Tensor:
        """The entries of all workers, of which this worker's are `start` to `stop`; any others of `tensor` are a placeholder's."""
        if tensor.dtype == tf.string:
            return self._gathered_strings(tensor[: stop - start])

        @tf.custom_gradient
        def gather(local: tf.Tensor) -> Any:
            def gradient(whole: tf.Tensor) -> tf.Tensor:
                # A step may differentiate it again.
                mine = self.summed([whole])[0][start:stop]
                return tf.concat([mine, tf.zeros([tf.shape(local)[0] - (stop - start), *tf.unstack(tf.shape(local)[1:])], mine.dtype)], 0)

            return self.group.concatenated([local[: stop - start]])[0], gradient

        return gather(tensor)

    def _gathered_strings(self, strings: tf.Tensor) -> tf.Tensor:
        """Gather the strings of all workers, which exchange their bytes."""
        split = tf.strings.bytes_split(tf.reshape(strings, [-1]))
        lengths, codes = split.row_lengths(), tf.reshape(tf.io.decode_raw(split.flat_values, tf.uint8), [-1])
        lengths, codes = self.group.concatenated([lengths, tf.cast(codes, tf.int32)])
        joined = tf.strings.reduce_join(tf.RaggedTensor.from_row_lengths(tf.gather(BYTES, codes), lengths), axis=1)
        return tf.reshape(joined, tf.concat([[-1], tf.shape(strings)[1:]], 0))

    def part(self, tensor: Any) -> Any:
        """This worker's rows of what is of the whole batch."""
        rows = self.inner
        if not _is_tensor(tensor):
            return tensor
        return self._with_companions(tensor, rows.take)

    @staticmethod
    def _with_companions(tensor: Any, function: Callable[[Any], Any]) -> Any:
        """Apply a function to a tensor, and to its mask and the logits behind it, which Keras' losses look for."""
        behind = _behind(tensor)
        # Keras looks for the operation, too.
        result = function(tensor) if behind is None else behind[0](function(behind[1]))
        for name in ("_keras_mask", "_keras_logits"):
            if (other := getattr(tensor, name, None)) is not None:
                setattr(result, name, function(other))
        return result

    def summed(self, tensors: Sequence[tf.Tensor], factor: float = 1.0) -> list[tf.Tensor]:
        """Differentiable sums over all workers, times a factor: every worker's result depends on all workers' tensors."""

        @tf.custom_gradient
        def add(*local: tf.Tensor) -> Any:
            def gradient(*sums: tf.Tensor) -> Any:
                return [one * factor for one in self.group.sum(sums)]

            return [one * factor for one in self.group.sum(local)], gradient

        result = add(*tensors)
        return list(result) if isinstance(result, list | tuple) else [result]

    def counts(self, count: tf.Tensor) -> tf.Tensor:
        """Every worker's count of something, in order of rank, int32."""
        return self.group.sum([tf.one_hot(self.group.rank, self.group.workers, dtype=tf.int32) * count])[0]

    def by_worker(self, numbers: tf.Tensor) -> tf.Tensor:
        """Every worker's numbers, in order of rank, differentiable; shapes are equal everywhere."""
        mine = tf.reshape(tf.one_hot(self.group.rank, self.group.workers, dtype=numbers.dtype), [-1] + [1] * len(numbers.shape))
        return self.summed([mine * numbers])[0]

    def gradients(self, local: Sequence[Any]) -> list[Any]:
        """Gradients of what all workers compute alike, by what all have alike, from each worker's: dense, sparse or None."""
        dense = [one for one in local if one is not None and not isinstance(one, tf.IndexedSlices)]
        # Every worker's loss is the same one, so the sum is that of as many losses.
        means = iter(self.summed(dense, 1 / self.group.workers) if dense else [])
        return [self._slices(one) if isinstance(one, tf.IndexedSlices) else None if one is None else next(means) for one in local]

    def _slices(self, local: tf.IndexedSlices) -> tf.IndexedSlices:
        """In the order of the batch: Keras' optimizers treat repeated rows one by one."""
        total = self.total(self.parted(local))
        return tf.IndexedSlices(total.values / self.group.workers, total.indices, total.dense_shape)

    def parted(self, local: tf.IndexedSlices) -> "SparseGradient":
        """A step's next sparse gradient, in its parts."""
        number, sizes = next(self._sparse), _uses(local)
        if self._layout.noted is not None:
            self._layout.noted.append(np.split(np.asarray(local.indices), np.cumsum([int(size) for size in sizes])[:-1]))
        every = self._layout.kinds
        kinds: Sequence[Use] = ["common"] * len(sizes) if every is None else every[number] if number < len(every) else []
        if len(kinds) != len(sizes):
            return SparseGradient(local, sizes, ["rows"] * len(sizes), None)
        return SparseGradient(local, sizes, kinds, self._latest)

    def total(self, parted: "SparseGradient") -> tf.IndexedSlices:
        """A sparse gradient of all workers: the rows of each, and sums of what is of no row."""
        rows = iter(self.group.concatenated(parted.of_rows) if parted.of_rows else ())
        sums = iter(self.group.sum(parted.shared) if parted.shared else ())
        return parted.joined(rows, sums)

    # --- layers

    def sees_all(self, layer: Operation) -> bool:
        """Return whether a layer is given the whole batch."""
        return self.replicated or layer in self._layout.seeing_all or isinstance(layer, MIXING) or getattr(layer, "stateful", False)

    @contextlib.contextmanager
    def again(self, rows: Rows | None, layers: Sequence[Layer], replicated: bool) -> Iterator[None]:
        """Be where an earlier call was."""
        before = self.rows, self.layers, self.replicated
        self.rows, self.layers, self.replicated = rows, [*layers], replicated
        try:
            yield
        finally:
            self.rows, self.layers, self.replicated = before

    def outermost(self, call: Callable[..., Any], layer: Layer, arguments: Any) -> Any:
        """A layer's call with this worker's rows; its results have those of all."""
        leaves, beside = tf.nest.flatten(arguments), self._layout.beside.get(layer, ())
        have = [self.has_rows(layer, leaf) and at not in beside for at, leaf in enumerate(leaves)]
        divided = list(itertools.compress(leaves, have))
        if not divided or self.sees_all(layer):
            return call(layer, *arguments[0], **arguments[1])
        count = first(divided[0])
        self.rows = self._latest = Rows.of(self.group, self._shares, count)
        try:
            check_rows(divided, count)
            parts = [self.part(leaf) if has else leaf for leaf, has in zip(leaves, have, strict=True)]
            given, named = tf.nest.pack_sequence_as(arguments, parts)
            before = _kept(layer)
            results = self.inside(call, layer, given, named)
            self._check(layer, tf.nest.flatten(results), "returns")
            self._gather_kept(layer, before)
            return tf.nest.map_structure(self.whole, results)
        finally:
            self.rows = None

    def _check(self, layer: Layer, leaves: Sequence[Any], verb: str) -> None:
        """Refuse leaves that can't be gathered."""
        for one in leaves:
            if not (_is_tensor(one) or isinstance(one, PLAIN)):
                raise SeesAll(layer, f"{verb} a {type(one).__name__}, in which rows are not known")
            if _is_tensor(one) and (one.dtype == tf.string or not self._may_have_rows(one)):
                raise SeesAll(layer, f"{verb} {'strings' if one.dtype == tf.string else 'what has no rows'}")

    def _gather_kept(self, layer: Layer, before: Mapping[tuple[int, Any], Any]) -> None:
        """Let tensors that a call of the user's own has kept somewhere be of the whole batch: a loss may use them."""
        for (_, key), (values, value) in _kept(layer).items():
            if value is not before.get((id(values), key), (None, None))[1]:
                self._check(layer, tf.nest.flatten(value), f"keeps as its {key}")
                values[key] = tf.nest.map_structure(self.whole, value)

    def has_rows(self, layer: Operation, leaf: Any) -> bool:
        """Return whether an argument's first dimension is that of the batch: not known, or a multiple of what is known of the batch."""
        if not leads(leaf):
            return False
        first, fixed = leaf.shape[0], self._layout.fixed.get(layer, ())
        return first is None or bool(first and self._static and first % self._static == 0 and first not in fixed)

    def counts_rows(self, first: int | None) -> bool:
        """Return whether a first dimension inside of a call is that of this worker's rows."""
        layer, computed = self.layers[-1] if self.layers else None, self.inner.computed
        if first is None or not isinstance(computed, int):
            return first is None
        is_fixed = layer is not None and first in self._layout.fixed.get(layer, ())
        looks = first == computed or (computed > 1 and first > 0 and first % computed == 0)
        if layer is not None:
            self.sizes.setdefault(layer, set()).add(first)
            if is_fixed and looks:
                raise SeesAll(layer, f"has {first} of something, as many as rows")
        return looks and not is_fixed

    def _may_have_rows(self, result: Any) -> bool:
        if not result.shape.rank:
            return False
        first, computed = result.shape[0], self.inner.computed
        return first is None or not isinstance(computed, int) or first % computed == 0

    def inside(self, call: Callable[..., Any], layer: Layer, given: Sequence[Any], named: dict[str, Any]) -> Any:
        """A layer's call with this worker's rows."""
        self.layers.append(layer)
        try:
            return call(layer, *given, **named)
        finally:
            self.layers.pop()

    def seeing_all(self, call: Callable[..., Any], layer: Layer, arguments: Any) -> Any:
        """Inside of a call: a layer's call with the whole batch, of whose results this worker has its rows."""
        rows = self.rows
        given, named = tf.nest.map_structure(self.whole, arguments)
        with self.everything():
            results = call(layer, *given, **named)
        self.rows = rows
        return tf.nest.map_structure(self.part, results)

    def everything(self) -> contextlib.AbstractContextManager[None]:
        """Let all workers compute the same, of the whole batch."""
        return self.again(None, self.layers, True)

    def regularizing(self, layer: Layer, regularizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A regularizer of a layer's outputs, whose penalty Keras divides by their rows: it adds that of the whole batch itself."""
        rows = self.inner

        def regularized(output: Any) -> Any:
            every = self.whole(output)
            with self.everything():
                penalty = regularizer(every)
                layer.add_loss(tf.math.divide_no_nan(penalty, tf.cast(rows.count, penalty.dtype)))
            self.penalized = layer
            return tf.zeros_like(penalty)

        return regularized


class SparseGradient:
    """A worker's sparse gradient, by the uses of its variable."""

    def __init__(self, local: tf.IndexedSlices, sizes: Sequence[tf.Tensor], kinds: Sequence[Use], rows: Rows | None):
        """`sizes`: entries of each use; `kinds`: of the uses; `rows`: of the batch on this worker, if that is known."""
        self.local, self._shape, self._kinds = local, local.dense_shape, kinds
        values, indices = (tf.split(one, sizes, num=len(sizes)) if len(sizes) > 1 else [one] for one in (local.values, local.indices))
        if rows is not None:
            # Entries of a placeholder are none.
            real = tf.cast(tf.sign(rows.stop - rows.start), tf.int32)
            values, indices = (
                [one if kind == "common" else one[: tf.shape(one)[0] * real] for one, kind in zip(every, kinds, strict=True)]
                for every in (values, indices)
            )
        self._indices = indices
        pairs = list(zip(values, indices, kinds, strict=True))
        self.of_rows: list[tf.Tensor] = [one for value, index, kind in pairs if kind != "common" for one in (value, index)]
        self.shared: list[tf.Tensor] = [value for value, _, kind in pairs if kind == "common"]

    def joined(self, rows: Iterator[tf.Tensor], sums: Iterator[tf.Tensor]) -> tf.IndexedSlices:
        """All of it, from what all workers' `of_rows` and `shared` give together."""

        def entries(kind: Use, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            if kind == "common":
                return next(sums), index
            every = next(rows), next(rows)
            return _once(*every) if kind == "unique" else every

        values, indices = zip(*map(entries, self._kinds, self._indices), strict=True)
        return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), self._shape)


def _once(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Entries of a sparse gradient, of which those of the same index are added up, in the order in which they are met first."""
    unique, places = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, places, tf.size(unique)), unique


def _uses(gradient: tf.IndexedSlices) -> list[tf.Tensor]:
    """Entries of a sparse gradient by use of its variable, in order."""
    return getattr(gradient, USES, None) or [tf.shape(gradient.indices)[0]]


def current() -> Step | None:
    """This thread's step, if it is in one."""
    return getattr(_thread, "step", None)


def within(step: Step | None) -> contextlib.AbstractContextManager[None]:
    """Let this thread be in a step, or in none."""
    return replaced(_thread, "step", step)


def _inside() -> Step | None:
    """The step, inside of a layer's outermost call."""
    step = current()
    return step if step is not None and step.rows is not None else None


def _is_tensor(leaf: Any) -> bool:
    return bool(tf.is_tensor(leaf))


def _behind(tensor: Any) -> tuple[Callable[[Any], Any], Any] | None:
    """The operation that gives probabilities, and the logits behind them, which Keras' cross-entropies use; None if these are none."""
    if not isinstance(tensor, tf.Tensor) or tf.executing_eagerly() or hasattr(tensor, "_keras_logits"):
        return None
    function = {"Softmax": tf.nn.softmax, "Sigmoid": tf.sigmoid}.get(tensor.op.type)
    return None if function is None else (function, tensor.op.inputs[0])


def leads(leaf: Any) -> bool:
    """Return whether something is a tensor with a first dimension."""
    return _is_tensor(leaf) and bool(leaf.shape.rank)


def leading(data: Any) -> Any:
    """The first tensor of a batch."""
    return next(leaf for leaf in tf.nest.flatten(data) if leaf is not None)


def first(tensor: Any) -> Any:
    """Size of a tensor's first dimension, an integer where it is known."""
    if tensor.shape[0] is not None:
        return int(tensor.shape[0])
    if isinstance(tensor, tf.SparseTensor):
        return tf.cast(tensor.dense_shape[0], tf.int32)
    return tensor.nrows(tf.int32) if isinstance(tensor, tf.RaggedTensor) else tf.shape(tensor, tf.int32)[0]


def check_rows(tensors: Sequence[Any], count: Any) -> None:
    """Check, when it runs, that tensors have as many rows, where that is not known."""
    for tensor in tensors:
        if tensor.shape[0] is None or not isinstance(count, int):
            tf.debugging.assert_equal(first(tensor), count, message=UNLIKE)


# --- what Keras and TensorFlow do differently in a step


def _calling(call: Callable[..., Any], /, layer: Layer, *given: Any, **named: Any) -> Any:
    """`Layer.__call__`."""
    step = current()
    if step is None or step.replicated:
        return call(layer, *given, **named)
    if step.rows is None:
        return step.outermost(call, layer, (list(given), named))
    if step.sees_all(layer):
        return step.seeing_all(call, layer, (list(given), named))
    return step.inside(call, layer, given, named)


def _operating(call: Callable[..., Any], /, operation: Operation, *given: Any, **named: Any) -> Any:
    """`Operation.__call__`: a function of `keras.ops` in a functional model."""
    step = _inside()
    if step is None or isinstance(operation, Layer) or not step.sees_all(operation):
        return call(operation, *given, **named)
    return step.seeing_all(call, operation, (list(given), named))


def _assigning(assign: Callable[..., Any], /, variable: Any, *given: Any, **named: Any) -> Any:
    """A variable's new value: what a layer of the user's own computes from its rows may be a sum, a mean, or a count."""
    step = current()
    if step is not None and step.rows is not None and not step.drawing and step.layers and not of_keras(step.layers[-1]):
        raise SeesAll(step.layers[-1], "keeps what it computes")
    if step is not None and not step.keeps:
        return variable
    return assign(variable, *given, **named)


def _kept(layer: Layer) -> dict[tuple[int, Any], tuple[Any, Any]]:
    """Tensors, or tuples of them, that a layer's own code keeps, and the dicts and lists that they are in, by these and keys."""
    if not own_layers(layer):
        return {}
    every = ((values, key) for one in layer._flatten_layers() for values, key in places(one))
    found = ((values, key, values[key]) for values, key in every if isinstance(values[key], tuple) or _is_tensor(values[key]))
    return {(id(values), key): (values, value) for values, key, value in found if any(map(_is_tensor, tf.nest.flatten(value)))}


def of_keras(layer: Operation) -> bool:
    """Return whether a layer is one of Keras' own, which treats each row alone, or for which hooks account for all rows."""
    if not isinstance(layer, Layer) or is_users(layer) or isinstance(layer, keras.layers.Lambda):
        return False
    functions = filter(None, map(_function_in, filter(callable, vars(layer).values())))
    return KNOWN.issuperset(str(one.__module__).partition(".")[0] for one in functions)


def _function_in(value: Any) -> types.FunctionType | None:
    """The function in a partial one, a method or one that TensorFlow traces; None if it is none."""
    while inner := next((getattr(value, name) for name in ("func", "__func__", "python_function") if hasattr(value, name)), None):
        value = inner
    return value if isinstance(value, types.FunctionType) else None


def own_layers(layer: Layer) -> list[Layer]:
    """The user's own layers in a layer, which may be itself."""
    return [one for one in layer._flatten_layers() if not of_keras(one)]


def _seeding(following: Callable[..., Any], /, generator: Any, *given: Any, **named: Any) -> Any:
    """`SeedGenerator.next`, which counts alike on all workers."""
    step = current()
    if step is None:
        return following(generator, *given, **named)
    step.drawing, step.draws = step.drawing + 1, step.draws + 1
    try:
        return following(generator, *given, **named)
    finally:
        step.drawing -= 1


class _Regularizer:
    """`Layer.activity_regularizer`, over the whole batch."""

    def __get__(self, layer: Layer | None, kind: type) -> Any:
        regularizer = None if layer is None else vars(layer).get("activity_regularizer")
        step = _inside()
        return regularizer if step is None or regularizer is None else step.regularizing(layer, regularizer)

    def __set__(self, layer: Layer, regularizer: Any) -> None:
        vars(layer)["activity_regularizer"] = regularizer


def _adding(add_loss: Callable[..., Any], layer: Layer, loss: Any) -> Any:
    """`Layer.add_loss`: whether a loss is a sum or a mean over rows is not known."""
    if (step := _inside()) is not None:
        if step.penalized is not layer:
            raise SeesAll(layer, "adds a loss")
        step.penalized = None
    return add_loss(layer, loss)


def _differentiating(gradient: Callable[..., Any], /, tape: tf.GradientTape, *given: Any, **named: Any) -> Any:
    """`GradientTape.gradient`."""
    if (step := current()) is None or step.rows is not None:
        return gradient(tape, *given, **named)
    # What a function of the user's own differentiates to give its gradient is part of this one.
    step.differentiating += 1
    try:
        local = gradient(tape, *given, **named)
    finally:
        step.differentiating -= 1
    return local if step.differentiating else tf.nest.pack_sequence_as(local, step.gradients(tf.nest.flatten(local)))


def _recomputing(recompute: Callable[..., Any], function: Any) -> Any:
    """`tf.recompute_grad`: what is computed again while a tape differentiates has the rows that it had first."""
    last: Any = None

    @functools.wraps(function, updated=())
    def computed(*given: Any, **named: Any) -> Any:
        nonlocal last
        if (step := current()) is None:
            return function(*given, **named)
        if not step.differentiating or last is None:
            last = step.rows, list(step.layers), step.replicated
        with step.again(*last):
            return function(*given, **named)

    result = recompute(computed)
    result.__wrapped__ = function
    return result


def _inlining(call: Callable[..., Any], /, function: Function, *given: Any, **named: Any) -> Any:
    """A call of a `tf.function` of the user's own, as part of the step: a trace would be kept for others, and XLA can't exchange."""
    own, step = function.python_function, current()
    # Keras' own convolve in groups, which TensorFlow can't without XLA.
    if step is None or own.__module__.partition(".")[0] in KNOWN:
        return call(function, *given, **named)
    draws, converts = step.draws, tf.inside_function() and function._autograph
    results = (autograph.tf_convert(own, ControlStatusCtx(Status.ENABLED)) if converts else own)(*given, **named)
    if step.draws > draws and function.experimental_get_tracing_count():
        step.repeating.add(own.__qualname__)
    return results


def _padding(vectorize: Callable[..., Any], /, layer: TextVectorization, *given: Any, **named: Any) -> Any:
    """`TextVectorization.call`, which pads its rows to the longest of the batch."""
    numbers, step = vectorize(layer, *given, **named), _inside()
    if step is None or layer._output_mode != "int" or layer._output_sequence_length or not isinstance(numbers, tf.Tensor):
        return numbers
    width = tf.shape(numbers)[-1]
    return tf.pad(numbers, [*([0, 0] for _ in numbers.shape[1:]), [0, tf.reduce_max(step.counts(width)) - width]])


def _deriving(gradients: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """`tf.gradients`."""
    local, step = gradients(*given, **named), current()
    return local if step is None or step.rows is not None else step.gradients(local)


def _collecting(aggregate: Callable[..., Any], gradients: Sequence[Any]) -> Any:
    """`AggregateIndexedSlicesGradients`: one gradient of several uses of a variable."""
    total = aggregate(gradients)
    if current() is not None and isinstance(total, tf.IndexedSlices):
        setattr(total, USES, [size for one in gradients if one is not None for size in _uses(one)])
    return total


def _unknown(method: Callable[..., Any], /, tape: Any, *given: Any, **named: Any) -> Any:
    """Derivatives that are not summed."""
    if (step := current()) is not None and step.rows is None and step.group.workers > 1:
        what = f"{type(tape).__name__}.{method.__name__}"
        raise LockstepError(f"{what} in a train_step: only GradientTape.gradient() is that of all workers")
    return method(tape, *given, **named)


def _normalizing(moments: Callable[..., Any], layer: BatchNormalization, inputs: tf.Tensor, mask: Any) -> Any:
    """`BatchNormalization._moments`, of the whole batch: those of parts, combined (Chan, Golub, LeVeque 1979, STAN-CS-79-773)."""
    step = _inside()
    if step is None or not step.counts_rows(inputs.shape[0]):
        return moments(layer, inputs, mask)
    rows, rank = step.inner, len(inputs.shape)
    # As Keras does, in float32 at least.
    x = tf.cast(inputs, tf.float32) if inputs.dtype.size < tf.float32.size else inputs
    counted = _broadcast(tf.range(tf.shape(x)[0]) < rows.scaled(tf.shape(x)[0]) * (rows.stop - rows.start), x)
    if mask is not None:
        counted = tf.logical_and(counted, _broadcast(tf.cast(mask, tf.bool), x))
    axes, along = layer._reduction_axes, [1] * rank
    along[layer.axis % rank] = -1
    count = tf.reduce_sum(tf.cast(counted, x.dtype), axes)
    mean = tf.math.divide_no_nan(tf.reduce_sum(tf.where(counted, x, tf.zeros_like(x)), axes), count)
    spread = tf.reduce_sum(tf.where(counted, tf.square(x - tf.reshape(mean, along)), tf.zeros_like(x)), axes)
    counts, means, spreads = tf.unstack(step.by_worker(tf.stack([count, mean, spread])), axis=1)
    # As Keras does where there is a mask.
    number = tf.reduce_sum(counts, 0) + (0.0 if mask is None else keras.backend.epsilon())
    all_mean = tf.reduce_sum(counts * means, 0) / number
    variance = tf.reduce_sum(spreads + counts * tf.square(means - all_mean), 0) / number
    return tf.cast(all_mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _broadcast(flags: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Flags of the first dimensions of `x`, in its shape."""
    shape = tf.concat([tf.shape(flags), tf.ones([len(x.shape) - len(flags.shape)], tf.int32)], 0)
    return tf.broadcast_to(tf.reshape(flags, shape), tf.shape(x))


def _drawing(draw: Callable[..., Any], /, shape: Any, *given: Any, **named: Any) -> Any:
    """A function of `keras.random` that takes a shape."""
    if (step := current()) is not None and step.drawn is not None:
        bound = inspect.signature(draw).bind(shape, *given, **named)
        bound.apply_defaults()
        return _placed(draw(shape, *given, **named), step.drawn, bound.arguments)
    step = _inside()
    if step is None or not (per_row := _per_row(step, shape)):
        return draw(shape, *given, **named)
    whole, start, stop = per_row
    return draw(whole, *given, **named)[start:stop]


def _placed(numbers: tf.Tensor, place: float, given: Mapping[str, Any]) -> tf.Tensor:
    """Numbers of the same shape, all at one place of their range; that of normal ones ends at 3 deviations."""
    if "stddev" in given:
        least, most = (given["mean"] + side * 3 * given["stddev"] for side in (-1, 1))
    else:
        least, most = given["minval"], given["maxval"]
    return tf.fill(tf.shape(numbers), tf.cast(least + place * (most - least), numbers.dtype))


def _per_row(step: Step, shape: Any) -> tuple[Any, Any, Any] | None:
    """For a shape of this worker's rows: that of all rows, and where this worker's begin and end; None if it has no rows."""
    sizes = tf.unstack(shape) if tf.is_tensor(shape) else list(shape)
    if not sizes:
        return None
    if not step.counts_rows(tf.get_static_value(sizes[0])):
        return None
    rows, per_row = step.inner, step.inner.scaled(sizes[0])
    return tf.stack([rows.count * per_row, *sizes[1:]]), rows.start * per_row, (rows.start + rows.computed) * per_row


def _dropping(dropout: Callable[..., Any], inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
    """`keras.random.dropout`, with the numbers that TensorFlow's draws."""
    step = _inside()
    if step is None or rate in (0.0, 1.0):
        return dropout(inputs, rate, noise_shape, seed)
    shape, drawn = keras_random._get_concrete_noise_shape(inputs, noise_shape), keras_random._cast_seed(keras_random.draw_seed(seed))
    whole, start, stop = _per_row(step, shape) or (shape, 0, None)
    kept = tf.random.stateless_uniform(whole, seed=drawn, dtype=inputs.dtype)[start:stop] >= rate
    return tf.where(kept, inputs * tf.constant(1 / (1 - rate), inputs.dtype), tf.zeros_like(inputs))


def _drawing_for_all(draw: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """A function of `keras.random` whose numbers may be for each row, or an order of the rows."""
    if (step := _inside()) is not None and step.layers:
        raise SeesAll(step.layers[-1], f"draws by keras.random.{draw.__name__}")
    return draw(*given, **named)


Hooks = tuple[tuple[Any, str, Callable[..., Any]], ...]
"""Owners, names and replacements of functions: a replacement gets the function before its arguments."""
HOOKS: Hooks = (
    (Layer, "__call__", _calling),
    (Layer, "add_loss", _adding),
    (Operation, "__call__", _operating),
    *(
        (kind, name, _assigning)
        for kind in (BaseResourceVariable, ResourceVariable)
        for name in vars(kind)
        if name.startswith(("assign", "scatter_", "batch_scatter"))
    ),
    (SeedGenerator, "next", _seeding),
    (tf.GradientTape, "gradient", _differentiating),
    (tf.GradientTape, "jacobian", _unknown),
    (tf.GradientTape, "batch_jacobian", _unknown),
    (tf.autodiff.ForwardAccumulator, "jvp", _unknown),
    (backprop_util, "AggregateIndexedSlicesGradients", _collecting),
    (tf, "recompute_grad", _recomputing),
    (tf, "gradients", _deriving),
    (Function, "__call__", _inlining),
    (BatchNormalization, "_moments", _normalizing),
    (TextVectorization, "call", _padding),
    *((keras_random, name, _drawing) for name in ("normal", "uniform", "randint", "truncated_normal")),
    (keras_random, "dropout", _dropping),
    *((keras_random, name, _drawing_for_all) for name in ("beta", "binomial", "categorical", "gamma", "shuffle")),
)
"""Replacements of Keras' and TensorFlow's functions, which outside of a step do what the functions do."""
_installed, _installing = set[int](), threading.Lock()


def install(hooks: Hooks) -> None:
    """Replace functions, once."""
    with _installing:
        if id(hooks) in _installed:
            return
        for owner, name, hook in hooks:
            setattr(owner, name, _hooked(getattr(owner, name), hook))
        Layer.activity_regularizer = _Regularizer()
        _installed.add(id(hooks))


def _hooked(function: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        return hook(function, *given, **named)

    return called
