"""A step tried on a few rows before the first one, made-up ones and real ones, to find which layers must see the whole batch.

Each outermost call of a layer is tried alone, and as two workers that are threads of this process; what it returns and what it would
keep must be the same. Calls of the user's own code are also tried with all rows but the first changed. No variable changes meanwhile.
"""

import contextlib
import copy
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras.src.layers.normalization.batch_normalization import BatchNormalization
from keras.src.ops.operation import Operation

from trainer.common.patching import ProcessWide, replaced
from trainer.common.safe_text import printable
from trainer.keras_step import additive, whole_batch
from trainer.keras_step.optimizer import copies_weights, inner
from trainer.models.compiled_model import CompiledModel
from trainer.network import all_reduce
from trainer.network.array_group import ArrayGroup, digest
from trainer.user_code.undo import REPLACED, State, is_users, undone

ROWS, UNKNOWN = 5, 4
"""Rows of a made-up batch, of which two workers have unequal parts; size of its dimensions that are not known."""
FEWEST, MOST = 3, 64
"""Rows of a real batch that is tried."""
SPOILED = (np.nan, None), (1e9, 0.0), (-1e9, 0.999), (0.0, 0.5)
"""Numbers that take the place of all rows' but the first, and `Step.drawn`, as a layer may mix rows now and then."""
MISSING = 0.3
"""Part of the numbers that are NaN in one more trial: what fills them in may be a mean of others."""
SAMPLE_BYTES = 2**22
"""Most bytes of real rows that are tried, unless fewer than `ROWS` have as many."""
FIRST_IMAGE = (
    "gives every row the first image, distorted, as in Keras' own fit where the last batch is smaller: it transforms as many images "
    "as are known when a step is traced. Fix: distort images in the data"
)
REPEATS = (
    "draws other numbers in each step; Keras' own fit repeats those with which it was traced when the model was built. "
    "Fix: leave out its @tf.function"
)
WHOLE = "each worker computes the whole batch"
SEES_ALL = "sees the whole batch, and all workers compute the same of it"
TOLERANCE, HALF_TOLERANCE = 2e-5, 2e-2
"""Largest difference by rounding, relative to the largest number of an array; the second of layers that compute in 16 bits."""
SHAKEN, MAGNIFIED, MOST_NOISE = 4, 10, 1e-2
"""Change of weights, in units of their rounding, which a deep model may magnify; how much more it may magnify another rounding, and the
largest difference that is taken for it, relative to the largest number of an array: a number that is rounded to a whole one may jump."""
GATHERED = 2**16
"""Most bytes of a row's outputs that are gathered for losses and metrics of the user's own which seem to add up."""
PATIENCE_S = 60.0
"""Seconds for the slower of two threads."""
EAGERLY = ProcessWide(tf.config.functions_run_eagerly, tf.config.run_functions_eagerly, True)
"""Lets functions that are traced inside of a step run as they are: what is traced in a trial would count as their first trace."""


class Threads:
    """Workers that are threads of one process, and exchange arrays when all have come; `alternating` ones run one at a time in between."""

    def __init__(self, workers: int, alternating: bool = False, patience_s: float = PATIENCE_S, objects: Sequence[Any] = ()):
        """Make as many `members`, which wait for each other for at most `patience_s` seconds.

        Each of alternating ones finds the `State` of these objects as it has left it, first as it is when they begin.
        """
        self._objects = objects
        self._turn: Any = threading.Lock() if alternating else contextlib.nullcontext()
        self._barrier, self._given = threading.Barrier(workers, timeout=patience_s), [list[np.ndarray]()] * workers
        self.members = [Member(self, rank, workers) for rank in range(workers)]

    def exchange(self, rank: int, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Every worker's arrays, in order of rank."""
        self._given[rank] = [np.array(array) for array in arrays]
        with self._others_turn():
            self._barrier.wait()
            every = list(self._given)
            self._barrier.wait()
        return every

    @contextlib.contextmanager
    def _others_turn(self) -> Iterator[None]:
        mine = State(self._objects) if self._objects else None
        self._turn.__exit__(None, None, None)
        try:
            yield
        finally:
            self._turn.__enter__()
            if mine is not None:
                mine.restore()

    def run(self, work: Callable[["Member"], Any]) -> list[Any]:
        """Run the work of all members, and return their results; raise the first error if one fails."""
        results, errors = [None] * len(self.members), list[BaseException]()
        begun = State(self._objects) if self._objects else None

        def one(member: Member) -> None:
            try:
                with self._turn:
                    if begun is not None:
                        begun.restore()
                    results[member.rank] = work(member)
            except BaseException as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=one, args=(member,)) for member in self.members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            # The others' follow from it.
            raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
        return results


class Member:
    """One of several `Threads`: `collective.Arrays`."""

    def __init__(self, threads: Threads, rank: int, workers: int):
        self._threads, self.rank, self.workers = threads, rank, workers

    def all_reduce(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """See `collective.Arrays`."""
        return [sum(parts[1:], parts[0]) for parts in zip(*self._threads.exchange(self.rank, arrays), strict=True)]

    def all_gather(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """See `collective.Arrays`."""
        return [np.concatenate(parts) for parts in zip(*self._threads.exchange(self.rank, arrays), strict=True)]


class _Part(whole_batch.Step):
    """A worker's part of a call, which changes nothing."""

    keeps = False


def _unequal(rows: int) -> tuple[int, int]:
    """Two workers' parts of a made-up batch: what has the same size in both is not of its rows."""
    return rows // 2 + 1, rows - rows // 2 - 1


class Rehearsal(whole_batch.Step):
    """A step on one worker, run eagerly, that tries each outermost call in parts, too."""

    keeps = False
    _static: int

    def __init__(self, layout: whole_batch.Layout, trial: "Trial", counted: bool = False):
        """As `Trial.rehearse`."""
        self._counted, self._real = counted, trial.real
        super().__init__(all_reduce.Alone(), layout, trial.rows)
        self.differing: list[str] = []
        """Layers that have other results on two workers, whatever sees the whole batch."""
        self.bending: list[str] = []
        """Layers whose gradient is not proportional to that of their results, row by row."""
        self._at = dict[Operation, set[int]]()
        """By layer, arguments that have had rows."""
        self.sparse = False
        """True if a gradient is one of some rows, as that of an Embedding."""
        self.row_bytes = 0
        """Bytes of all outermost calls' results for one row."""

    def outermost(self, call: Callable[..., Any], layer: keras.Layer, arguments: Any) -> Any:
        """See `Step`."""
        self._note_sizes(layer, tf.nest.flatten(arguments))
        own = whole_batch.own_layers(layer)
        before = State(own)
        with self.everything():
            results = call(layer, *arguments[0], **arguments[1])
        tensors = [one for one in tf.nest.flatten(results) if isinstance(one, tf.Tensor)]
        self.row_bytes += sum(one.dtype.size * (one.shape.num_elements() or 0) // self._static for one in tensors)
        if any(self.has_rows(layer, leaf) for leaf in tf.nest.flatten(arguments)):
            # The next call of a layer forgets those of the last.
            losses = [(one, list(one._losses)) for one in layer._flatten_layers()]
            with undone(own):
                # A layer may do something at its first call only.
                self._before = before
                self._try(layer, arguments)
            for one, added in losses:
                one._losses[:] = added
        return results

    def _note_sizes(self, layer: keras.Layer, arguments: Sequence[Any]) -> None:
        sizes = {at: leaf.shape[0] for at, leaf in enumerate(arguments) if whole_batch.leads(leaf) and leaf.shape[0] is not None}
        others = {at for at, size in sizes.items() if size % self._static}
        self._layout.fixed.setdefault(layer, set()).update(sizes[at] for at in others)
        # Real data may have as many of something as rows.
        if not self._real:
            rows, beside = self._at.setdefault(layer, set()), self._layout.beside.setdefault(layer, set())
            rows |= sizes.keys() - others
            beside |= others
            beside -= rows

    def gradients(self, local: Sequence[Any]) -> list[Any]:
        """See `Step`."""
        self.sparse = self.sparse or any(isinstance(one, tf.IndexedSlices) for one in local)
        return list(local)

    def _try(self, layer: keras.Layer, arguments: Any) -> None:
        alone = _Part(all_reduce.Alone(), self._layout, self._static)
        with alone(), alone.everything():
            agree = self._try_with(layer, arguments)
            own = not self._real and any(not whole_batch.of_keras(one) for one in _operations(layer))
            for others in _stretched(arguments) if own else ():
                # A number may be an index, which has other bounds.
                with contextlib.suppress(Exception):
                    agree = self._try_with(layer, others, again=True) and agree
        if not agree:
            self.differing.append(layer.name)

    def _try_with(self, layer: keras.Layer, arguments: Any, again: bool = False) -> bool:
        """Find what must see all rows of these; `again`: others were tried before. Whether it has the same results then."""
        calls = list[Call]()
        with _noting(layer, calls):
            results, scope = self._called(layer, arguments)
        expected = _Expected(layer, results, layer.variables, lambda: self._called(layer, arguments)[0])
        seeing, firsts = self._layout.seeing_all, [_First(call, self._static, self._before) for call in calls]
        seeing |= _keeping(layer, scope) | _found(firsts, lambda first: _holds(first.moves))
        apart = [first for first in firsts if not again and seeing.isdisjoint({first.operation, *_layers_of(first.operation)})]
        # A function that has no gradient shows nothing before.
        seeing |= _found(apart, lambda first: any(_holds(functools.partial(first.differs, *how)) for how in SPOILED))
        apart = [first for first in apart if seeing.isdisjoint({first.operation, *_layers_of(first.operation)})]
        self.bending += [one.name for one in _found(apart, lambda first: _holds(first.bends))]
        for more in (set[Operation](), *_candidates(layer)):
            tried = seeing | more
            if self._agrees(layer, arguments, expected, tried):
                seeing |= tried
                return True
        return False

    def _agrees(self, layer: keras.Layer, arguments: Any, expected: "_Expected", seeing: set[Operation]) -> bool:
        layout = dataclasses.replace(self._layout, seeing_all=seeing)
        while True:
            parts = list[whole_batch.Step]()

            def part(member: Member, parts: list[whole_batch.Step] = parts) -> list[Any]:
                step = _Part(all_reduce.OnHost(member), layout, self._static, _unequal(self._static))
                parts.append(step)
                with step():
                    return self._called(layer, arguments)[0]

            try:
                agree = all(map(expected.equal, Threads(2, alternating=True).run(part)))
            except whole_batch.SeesAll as error:
                seeing.add(error.layer)
                continue
            except Exception:
                # Such as an index of another worker's row.
                agree = False
            if not self._finds_fixed(parts, seeing):
                return agree

    def _called(self, layer: keras.Layer, arguments: Any) -> tuple[list[Any], keras.StatelessScope]:
        """Results of a call and values it would assign, by variable; and the call's scope. Python state is that before the first call."""
        self._before.restore()
        with keras.StatelessScope() as scope:
            results = layer(*arguments[0], **arguments[1])
        kept, leaves = [scope.get_current_value(variable) for variable in layer.variables], tf.nest.flatten(results)
        return [*leaves, *(getattr(one, "_keras_mask", None) for one in leaves), *kept], scope

    def _finds_fixed(self, parts: Sequence[whole_batch.Step], seeing: set[Operation]) -> bool:
        """Return whether some first dimensions inside the call are now found not to be rows: two unequal parts of the call have the same.

        Their layer sees the whole batch where the dimension may equal the rows of a real batch.
        """
        new = False
        for layer in parts[0].sizes.keys() & parts[-1].sizes.keys():
            more = parts[0].sizes[layer] & parts[-1].sizes[layer] - self._layout.fixed.setdefault(layer, set())
            self._layout.fixed[layer] |= more
            new = new or bool(more)
            if more and self._counted:
                seeing.add(layer)
        return new


Call = tuple[Operation, Callable[..., Any], Sequence[Any], dict[str, Any]]
"""An operation, its `call`, and the arguments."""


@contextlib.contextmanager
def _noting(layer: keras.Layer, calls: list[Call]) -> Iterator[None]:
    """Note the calls of the user's own operations in a layer, the innermost first, except of those that contain batch normalisation."""

    def noting(one: Operation, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def noted(*given: Any, **named: Any) -> Any:
            results = call(*given, **named)
            calls.append((one, call, given, named))
            return results

        return noted

    with contextlib.ExitStack() as patched:
        for one in _operations(layer):
            if not whole_batch.of_keras(one) and not any(
                isinstance(each, (BatchNormalization, *whole_batch.MIXING)) for each in _layers_of(one)
            ):
                for name in REPLACED if isinstance(one, keras.Layer) else REPLACED[:1]:
                    patched.enter_context(replaced(one, name, noting(one, getattr(one, name))))
        yield


def _layers_of(operation: Operation) -> list[keras.Layer]:
    """The layers in an operation, itself first if it is one."""
    return list(operation._flatten_layers()) if isinstance(operation, keras.Layer) else []


def _found(firsts: Sequence["_First"], test: Callable[["_First"], bool]) -> set[Operation]:
    """Innermost operations that pass a test."""
    found = set[Operation]()
    for first in firsts:
        if found.isdisjoint(_layers_of(first.operation)) and test(first):
            found.add(first.operation)
    return found


def _holds(test: Callable[[], bool]) -> bool:
    """Return whether a test succeeds; a test that can't be tried does not."""
    with contextlib.suppress(Exception), keras.StatelessScope():
        return test()
    return False


class _First:
    """The first row of a batch, in a call of an operation that may depend on the others."""

    def __init__(self, call: Call, count: int, before: State):
        """`count`: rows; `before`: the state of the user's own code in which it is called."""
        self.operation, self._function, given, named = call
        self._arguments, self._count, self._before = (given, named), count, before

    def _call(self, arguments: Any) -> list[Any]:
        self._before.restore()
        given, named = arguments
        return tf.nest.flatten(self._function(*given, **named))

    def _has_rows(self, leaf: Any) -> bool:
        return isinstance(leaf, tf.Tensor) and bool(leaf.shape.rank) and leaf.shape[0] % self._count == 0

    def _split(self, leaf: Any) -> tuple[Any, Any]:
        """Split a leaf into its first row's part and that of the other rows."""
        size = len(leaf) // self._count
        return leaf[:size], leaf[size:]

    def _mine(self, leaf: Any) -> Any:
        return self._split(leaf)[0]

    def _numbers_in(self, values: Any) -> list[Any]:
        """Leaves that have rows and a gradient."""
        return [leaf for leaf in tf.nest.flatten(values) if self._has_rows(leaf) and leaf.dtype.is_floating]

    def moves(self) -> bool:
        """Return whether the results move with other rows' numbers, however little."""
        rows = self._numbers_in(self._arguments)
        with tf.GradientTape() as tape:
            tape.watch(rows)
            results = [self._mine(one) for one in self._numbers_in(self._call(self._arguments))]
        moved = [tf.convert_to_tensor(move) for move in tape.gradient(results, rows) if move is not None]
        return any(bool(np.any(np.nan_to_num(self._split(one)[1]))) for one in moved)

    def bends(self) -> bool:
        """Return whether the gradient is not half of that by results twice as large, or not that by the first row's results alone."""
        rows = self._numbers_in(self._arguments)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(rows)
            results = self._numbers_in(self._call(self._arguments))
        by = [tf.reshape(tf.linspace(tf.cast(1.0, one.dtype), 2.0, tf.size(one)), tf.shape(one)) for one in results]
        mine = [self._with_others(one, 0.0) for one in by]
        once, twice, alone = (tape.gradient(results, rows, output_gradients=each) for each in (by, [2 * one for one in by], mine))
        return any(
            not (_alike(2 * one, two, TOLERANCE) and _alike(self._mine(one), self._mine(other), TOLERANCE))
            for one, two, other in zip(once, twice, alone, strict=True)
            if isinstance(one, tf.Tensor)
        )

    def _with_others(self, leaf: Any, number: float) -> Any:
        """The first row as it is, and a number in all others."""
        first, others = self._split(leaf)
        return tf.concat([first, tf.fill(tf.shape(others), tf.cast(number, leaf.dtype))], 0)

    def _results(self, arguments: Any) -> list[Any]:
        return [self._mine(one) for one in self._call(arguments) if self._has_rows(one)]

    def differs(self, number: float, drawn: float | None) -> bool:
        """Return whether the results differ where all other rows are some number, even if these are multiplied by 0, or compared."""

        def spoiled(leaf: Any) -> Any:
            return self._with_others(leaf, number) if self._numbers_in(leaf) else leaf

        step = whole_batch.current()
        assert step is not None
        with replaced(step, "drawn", drawn):
            expected = self._results(self._arguments)
        with keras.StatelessScope(), replaced(step, "drawn", drawn):
            found = self._results(tf.nest.map_structure(spoiled, self._arguments))
        layers = _layers_of(self.operation)
        return not (_same(layers[0], expected, found) if layers else all(map(_alike, expected, found, itertools.repeat(TOLERANCE))))


def _keeping(layer: keras.Layer, scope: keras.StatelessScope) -> set[Operation]:
    """The user's own layers in a layer that would assign variables: what they keep may be a sum, a mean, or a count."""
    return {one for one in whole_batch.own_layers(layer) if any(scope.get_current_value(each) is not None for each in _own_variables(one))}


def _own_variables(layer: keras.Layer) -> list[keras.Variable]:
    return [*layer._trainable_variables, *layer._non_trainable_variables, *(one for metric in layer._metrics for one in metric.variables)]


def _same(layer: keras.Layer, expected: Sequence[Any], found: Sequence[Any], noise: Sequence[float] | None = None) -> bool:
    """`noise`: of each, how much it changes by rounding, where that is magnified."""
    halves = any(tf.as_dtype(one.compute_dtype or "float32").size < tf.float32.size for one in layer._flatten_layers())
    tolerance, noise = HALF_TOLERANCE if halves else TOLERANCE, noise or [0.0] * len(expected)
    return all(_alike(one, other, tolerance, each) for one, other, each in zip(expected, found, noise, strict=True))


class _Expected:
    """Results of one worker, which those of several equal but for as much as rounding makes of them."""

    def __init__(self, layer: keras.Layer, results: list[Any], weights: Sequence[keras.Variable], again: Callable[[], list[Any]]):
        """`results`: of a layer or a model; `again`: computes them once more, with `weights` as they are then."""
        self._layer, self._results, self._weights, self._again = layer, results, weights, again

    def equal(self, found: list[Any]) -> bool:
        """Return whether these results are the expected ones."""
        return _same(self._layer, self._results, found) or _same(self._layer, self._results, found, self._noise)

    @functools.cached_property
    def _noise(self) -> list[float]:
        with _shaken(self._weights):
            return [*map(_change, self._results, self._again())]


@contextlib.contextmanager
def _shaken(variables: Iterable[keras.Variable]) -> Iterator[None]:
    """Let weights be others in their last bits."""
    signs, before = np.random.default_rng(0), [(one, tf.identity(one.value)) for one in variables if tf.as_dtype(one.dtype).is_floating]
    try:
        with whole_batch.within(None):
            for variable, value in before:
                by = SHAKEN * float(tf.experimental.numpy.finfo(value.dtype.as_numpy_dtype).eps)
                variable.assign(value * tf.where(signs.integers(0, 2, value.shape, np.int8) > 0, *tf.cast([1 + by, 1 - by], value.dtype)))
        yield
    finally:
        with whole_batch.within(None):
            for variable, value in before:
                variable.assign(value)


def _change(expected: Any, shaken: Any) -> float:
    """The largest change of a number of a result."""
    one, other = (np.asarray(value) if isinstance(value, tf.Tensor) else np.zeros(0) for value in (expected, shaken))
    return float(np.max(np.abs(one - other), initial=0.0)) if one.dtype.kind in "fc" and one.shape == other.shape else 0.0


def _alike(expected: Any, found: Any, tolerance: float, noise: float = 0.0) -> bool:
    if expected is None or found is None or not tf.is_tensor(expected):
        return (expected is None) == (found is None)
    dense = [value.to_tensor() if isinstance(value, tf.RaggedTensor) else tf.convert_to_tensor(value) for value in (expected, found)]
    one, other = map(np.asarray, dense)
    if one.shape != other.shape or one.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    scale = float(np.max(np.abs(one), initial=0.0, where=np.isfinite(one))) or 1.0
    most = max(tolerance * scale, min(MAGNIFIED * noise, MOST_NOISE * scale))
    return bool(np.allclose(one, other, rtol=tolerance, atol=most, equal_nan=True))


def _operations(layer: keras.Layer) -> list[Operation]:
    """All layers in a layer, itself first, and the functions of functional models; in the same order on all workers."""
    layers = list(layer._flatten_layers())
    return [*layers, *(one for parent in layers for one in getattr(parent, "operations", ()) if not isinstance(one, keras.Layer))]


def _candidates(layer: keras.Layer) -> Iterator[set[Operation]]:
    """The operations in a layer that may mix rows: by class, the innermost first, then together; the user's own before Keras'."""
    every = _operations(layer)
    for some in ([one for one in every if not whole_batch.of_keras(one)], [one for one in every if whole_batch.of_keras(one)]):
        yield from ({one for one in some if type(one) is kind} for kind in dict.fromkeys(map(type, reversed(some))))
        if some:
            yield set(some)
    yield set(every)


def _made_up(specs: Any) -> Any:
    """`ROWS` rows of a batch's structure: numbers between 0 and 1, whole ones 0 and 1."""
    numbers = np.random.default_rng(0)

    def leaf(spec: Any) -> Any:
        if not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec):
            return None
        if isinstance(spec, tf.RaggedTensorSpec):
            lengths = [1 + row % UNKNOWN for row in range(ROWS)] if spec.ragged_rank == 1 and spec.shape[1] is None else None
            return tf.RaggedTensor.from_tensor(dense(spec), lengths, ragged_rank=spec.ragged_rank)
        return tf.sparse.from_dense(dense(spec)) if isinstance(spec, tf.SparseTensorSpec) else dense(spec)

    def dense(spec: Any) -> tf.Tensor:
        shape = (ROWS, *(UNKNOWN if size is None else size for size in spec.shape[1:]))
        drawn = numbers.random(shape)
        if spec.dtype == tf.string:
            return tf.constant(np.where(drawn < 0.5, b"a", b"b").astype(object))
        return tf.cast(drawn if spec.dtype.is_floating else drawn < 0.5, spec.dtype)

    return tf.nest.map_structure(leaf, specs)


def _rows_of(specs: Any) -> int | None:
    """Rows of a batch, where its structure says how many."""
    shapes = [getattr(spec, "shape", None) for spec in tf.nest.flatten(specs)]
    return next((shape[0] for shape in shapes if shape is not None and shape.rank), None)


def _stretched(data: Any) -> Iterator[Any]:
    """Made-up rows in other bounds, with gaps, and with texts of several words, which may mean nothing.

    For code of the user's own: what it mixes may be too small to see between 0 and 1, or 0, or what fills in a number that is missing.
    """
    numbers = np.random.default_rng(1)
    changes: Sequence[tuple[str, Callable[[Any], Any]]] = (
        ("is_floating", lambda leaf: 255 * leaf),
        ("is_floating", lambda leaf: 2 * leaf - 1),
        ("is_integer", lambda leaf: 255 * leaf),
        ("is_floating", lambda leaf: tf.where(numbers.random(leaf.shape) < MISSING, np.nan, leaf)),
        ("is_text", _longer),
    )
    for kind, change in changes:
        which = [_is(kind, leaf) for leaf in tf.nest.flatten(data)]
        if any(which):
            leaves = [change(leaf) if has else leaf for leaf, has in zip(tf.nest.flatten(data), which, strict=True)]
            yield tf.nest.pack_sequence_as(data, leaves)


def _is(kind: str, leaf: Any) -> bool:
    """`kind`: `is_text`, or a property of TensorFlow's types."""
    if not isinstance(leaf, tf.Tensor):
        return False
    return bool(leaf.shape.rank and leaf.dtype == tf.string if kind == "is_text" else getattr(leaf.dtype, kind))


def _longer(leaf: Any) -> Any:
    """Texts of 1 to `UNKNOWN` words, by row."""
    counts = 1 + np.arange(len(leaf)) % UNKNOWN
    return tf.constant((np.asarray(leaf).T + b" ") * counts).T


class Placements:
    """Layers of a model that see the whole batch: found by trials or, where these don't show it, while a step is traced."""

    def __init__(self, model: keras.Model, workers: ArrayGroup, warn: Callable[[str], None]):
        """Begin with none; warnings go to the user."""
        # Each sentence once.
        self._model, self._workers, self._warn = model, workers, functools.cache(warn)
        self.layout = whole_batch.Layout()
        self._trials = list[Trial]()
        """Trials that a step can take."""
        self._tried_real = False
        self._looks: dict[additive.Additive, Callable[[], None]] = {}
        """By step, what finds its `Layout.kinds`."""
        self.one_by_one = False
        """True if Keras' optimizer updates repeated rows of a variable one by one, so that their gradients can't be added up before."""

    def by_rows(self, own: Callable[[Any], Any]) -> additive.Additive:
        """A `train_step` or `test_step` of the model, computed by rows."""
        return additive.Additive(self._model, own, dataclasses.replace(self.layout, kinds=[]))

    def rehearse(self, step: Callable[[Any], Any], specs: Any, sample: Callable[[], Any]) -> list[Rehearsal]:
        """Try a step of a kind as `Trial.rehearse`, on made-up rows, and on real ones if code is the user's own; all workers do, and agree.

        Args:
            step: of the model.
            specs: of its batches.
            sample: returns the first of them, or None.
        """
        before, rehearsed, why = set(self.layout.seeing_all), list[Rehearsal](), ""
        counted, self._trials = _rows_of(specs) is not None or bool(self._model.run_eagerly), []
        for make in self._batches(specs, sample):
            try:
                trial = make()
                with undone(self.own_code()):
                    rehearsed.append(trial.rehearse(step, self.layout, counted))
                self._trials.append(trial)
            except Exception as error:
                why = why or next(filter(str.strip, str(error).splitlines()), type(error).__name__)
        every = _operations(self._model)
        if not rehearsed:
            before.update(every)
            self._all_see_all()
            self._warn(f"the step could not be tried before it is traced, so {WHOLE}: {printable(why)}")
        table = self._workers.gather([one in self.layout.seeing_all for one in every])
        self.layout.seeing_all |= {one for one, sees in zip(every, table.sum(axis=0).tolist(), strict=True) if sees}
        for name in dict.fromkeys(name for one in rehearsed for name in one.differing):
            self._warn(f"{name} has other results on several workers than on one")
        for name in dict.fromkeys(name for one in rehearsed for name in one.bending):
            self._warn(f"{name} has other gradients on several workers than on one: its own gradient is not a sum over rows")
        for name in sorted({name for one in rehearsed for name in one.repeating}):
            self._warn(f"{name} {REPEATS}")
        for one in self.layout.seeing_all - before:
            self._warn(f"{one.name} {SEES_ALL}")
        return rehearsed

    def _batches(self, specs: Any, sample: Callable[[], Any]) -> Iterator[Callable[[], "Trial"]]:
        """Makers of made-up rows, then of real ones if there is code of the user's own, or if the step has not taken the made-up rows."""
        yield functools.partial(Trial.made_up, specs)
        model = CompiledModel(self._model)
        own = model.overridden() or model.unknown or not all(map(whole_batch.of_keras, _operations(self._model)))
        # Once: a validation calls the same layers.
        if (own and not self._tried_real) or self._workers.gather([not self._trials]).any():
            self._tried_real, real = True, Trial.of(sample())
            # Where workers have different ones, the first step says so.
            same = len(set(self._workers.digests(digest([]) if real is None else real.digest))) == 1
            if real is not None and same:
                yield lambda: real

    def own_code(self) -> list[Any]:
        """Objects that have code of the user's own."""
        optimizer = inner(self._model.optimizer)
        others = [optimizer, getattr(optimizer, "_learning_rate", None), *(one.regularizer for one in self._model.trainable_variables)]
        every = {id(one): one for one in [*CompiledModel(self._model).compiled_with, *self._model.metrics, *others]}.values()
        return [*whole_batch.own_layers(self._model), *(one for one in every if hasattr(one, "__dict__") and is_users(one))]

    def adds_up(self, step: additive.Additive, specs: Any, sample: Callable[[], Any] = lambda: None) -> bool:
        """Return whether a step is computed by rows: all workers try the step, as `Trial.rehearse` does, and agree.

        A step is computed so where that is known to be right, or was checked and is much cheaper than to gather outputs.
        """
        optimizer, layers, compiled = self._model.optimizer, list(self._model._flatten_layers()), CompiledModel(self._model)
        if copies_weights(optimizer, self._model.trainable_variables):
            name = type(inner(optimizer)).__name__
            self._warn(f"{name} begins with the model's weights; Keras' own fit begins with zeros unless it is eager")
        for layer in layers if _rows_of(specs) is None else ():
            if isinstance(layer, keras.layers.RandomElasticTransform):
                self._warn(f"{layer.name} {FIRST_IMAGE}")
        if self._workers.member.workers == 1:
            embeds = any(isinstance(layer, keras.layers.Embedding) for layer in layers)
            self.one_by_one = embeds and not additive.linear(optimizer)
            return not compiled.overridden()
        if compiled.overwrites:
            self._look_up_all(step)
            return False
        rehearsed, names = self.rehearse(step.own, specs, sample), compiled.unknown
        if self.layout.seeing_all.issuperset(_operations(self._model)):
            self._look_up_all(step)
        sparse = bool(self._workers.gather([any(one.sparse for one in rehearsed)]).any())
        self.one_by_one = sparse and not additive.linear(optimizer)
        size = max((one.row_bytes for one in rehearsed), default=0)
        may = bool(rehearsed) and compiled.steps_are_keras and (not names or size > GATHERED)
        with undone(self.own_code()), EAGERLY:
            may = may and all(trial.adds_up(step) for trial in self._trials)
        may = bool(self._workers.gather([may]).all())
        if sparse and not (compiled.steps_are_keras and additive.linear(optimizer)):
            may = self._agree_on_kinds(step, may) and may
        if may and names:
            self._warn(f"{', '.join(names)}: taken to add up over rows, as on made-up ones; to gather outputs takes {size} bytes a row")
        return may

    def _agree_on_kinds(self, step: additive.Additive, adds_up: bool) -> bool:
        """Find how a step uses the variables that it looks up; whether that is known, and the same on all workers."""
        self._looks[step] = functools.partial(self._look_up, step, list(self._trials), adds_up)
        self._looks[step]()
        # What is summed on one worker must be on all.
        found = digest([np.frombuffer(repr(step.layout.kinds).encode(), np.uint8)])
        if len(set(self._workers.digests(found))) > 1:
            self._look_up_all(step)
        if step.layout.kinds is None:
            self._warn(f"what an Embedding looks up is not known to be of rows, or the same for all, so {WHOLE}")
        return step.layout.kinds is not None

    def _look_up(self, step: additive.Additive, trials: Sequence["Trial"], adds_up: bool) -> None:
        """Find how a step uses the variables that it looks up, whatever is tried; where that is not known, all layers see all."""
        own, step.layout.kinds = self.own_code(), []
        try:
            with undone(own), EAGERLY:
                tried = [_may_use(step, trial, adds_up, own) for trial in trials]
            step.layout.kinds = [tuple([_use(each) for each in zip(*gradient, strict=True)]) for gradient in zip(*tried, strict=True)]
        except (Exception, whole_batch.SeesAll):
            self._look_up_all(step)

    def _look_up_all(self, step: additive.Additive) -> None:
        """Let all workers look up the same, as all layers see all."""
        step.layout.kinds = None
        self._all_see_all()

    def _all_see_all(self) -> None:
        self.layout.seeing_all |= {*_operations(self._model)}

    def see_all(self, error: whole_batch.SeesAll) -> None:
        """Note a layer that was found while a step was traced."""
        self.layout.seeing_all.add(error.layer)
        for layer in self._model._flatten_layers():
            layer._clear_losses()
        for look in self._looks.values():
            look()
        self._warn(f"{error}, so it {SEES_ALL}")


class Trial(NamedTuple):
    """A batch that a step is tried on."""

    data: Any
    rows: int
    real: bool = False

    @classmethod
    def made_up(cls, specs: Any) -> "Trial":
        """See `_made_up`."""
        return cls(_made_up(specs), ROWS)

    @classmethod
    def of(cls, batch: Any) -> "Trial | None":
        """Some rows of a real batch, if there are enough."""
        if batch is None:
            return None
        data = tf.nest.map_structure(_tensor, batch)
        rows = int(whole_batch.first(whole_batch.leading(data)))
        size = sum(one.size * one.itemsize for one in _arrays(data))
        rows = min(rows, MOST, max(ROWS, SAMPLE_BYTES * rows // max(size, 1)))
        if rows < FEWEST:
            return None
        return cls(whole_batch.Rows(rows, 0, rows).of_each(data), rows, real=True)

    @property
    def digest(self) -> str:
        """Digest of the numbers and texts."""
        texts = [repr(one.tolist()).encode() if one.dtype == object else one for one in _arrays(self.data)]
        return digest([np.frombuffer(one, np.uint8) if isinstance(one, bytes) else one for one in texts])

    def rehearse(self, step: Callable[[Any], Any], layout: whole_batch.Layout, counted: bool = False) -> Rehearsal:
        """Try a model's own `train_step`, which makes all variables that the first one would make.

        Args:
            step: of the model.
            layout: where to add what is found.
            counted: whether the number of rows of real batches is known when a step is traced, or always, as in eager steps.
        """
        rehearsal = Rehearsal(layout, self, counted)
        with rehearsal(), EAGERLY:
            step(self.data)
        return rehearsal

    def adds_up(self, step: additive.Additive) -> bool:
        """Return whether two workers' parts of a step add up to the step of one."""
        step = copy.copy(step)
        step.keeps = False
        if not _parts_add_up(step, self.data, self.rows):
            return False
        more = _stretched(self.data) if CompiledModel(step.model).unknown and not self.real else ()
        return all(_parts_add_up(step, others, self.rows, may_fail=True) for others in more)


def _tensor(leaf: Any) -> Any:
    """A leaf as a tensor; None where Keras gives a step none."""
    if leaf is None or isinstance(leaf, tf.experimental.Optional):
        return None
    return leaf if tf.is_tensor(leaf) else tf.convert_to_tensor(leaf)


def _arrays(data: Any) -> list[np.ndarray]:
    return [np.asarray(one) for one in tf.nest.flatten(data, expand_composites=True) if one is not None]


def _parts_add_up(step: additive.Additive, data: Any, rows: int, may_fail: bool = False) -> bool:
    """`may_fail`: whether the data may mean nothing, which then says nothing."""

    def part(member: Member) -> list[Any]:
        group = all_reduce.OnHost(member)
        with _trying(step):
            every, _ = step.added(group, data, _unequal(rows)).summed(group)
        return _numbers(every)

    def alone() -> tuple[list[Any], keras.StatelessScope]:
        with _trying(step) as scope:
            return _numbers(step.alone(data).summed(all_reduce.Alone())[0]), scope

    known = {id(one) for one in [*step.variables, *step.model.variables]}
    try:
        numbers, scope = alone()
    except Exception:
        return may_fail
    # What a loss keeps is of the whole batch.
    if scope.state_mapping.keys() - known:
        return False
    expected = _Expected(step.model, numbers, step.model.trainable_variables, lambda: alone()[0])
    try:
        return all(map(expected.equal, Threads(2, alternating=True).run(part)))
    except (Exception, whole_batch.SeesAll):
        return False


def _may_use(step: additive.Additive, trial: Trial, adds_up: bool, objects: Sequence[Any]) -> list[tuple[list[whole_batch.Use], ...]]:
    """Possible uses of each variable that a step looks up, as of `whole_batch.Layout`, by the look-ups of two unequal parts of the step.

    Args:
        step: of the model.
        trial: rows for the step.
        adds_up: whether the step is computed by rows.
        objects: the ones with code of the user's own.
    """

    def part(group: Any) -> list[list[np.ndarray]]:
        noted, mine = list[list[np.ndarray]](), copy.copy(step)
        mine.keeps, mine.layout = False, dataclasses.replace(step.layout, noted=noted)
        shares = _unequal(trial.rows) if group.workers > 1 else None
        if adds_up:
            with _trying(mine):
                mine.added(group, trial.data, shares)
        else:
            with _Part(group, mine.layout, trial.rows, shares)():
                mine.own(trial.data)
        return noted

    with undone(objects):
        alone = part(all_reduce.Alone())
    here, there = Threads(2, alternating=True, objects=objects).run(lambda member: part(all_reduce.OnHost(member)))
    return [tuple(_may_be(*one) for one in zip(*gradient, strict=True)) for gradient in zip(alone, here, there, strict=True)]


def _may_be(every: np.ndarray, here: np.ndarray, there: np.ndarray) -> list[whole_batch.Use]:
    """Possible uses of a variable, from look-ups by the whole and by each of its parts; the use that needs the least data first."""
    both = np.concatenate([here, there])
    are: dict[whole_batch.Use, bool] = {
        "rows": np.array_equal(np.sort(every), np.sort(both)),
        "unique": np.array_equal(np.sort(every), np.unique(both)),
        "common": np.array_equal(every, here) and np.array_equal(every, there),
    }
    return [use for use, may in are.items() if may]


def _use(trials: Sequence[Sequence[whole_batch.Use]]) -> whole_batch.Use:
    """Use that is possible in each trial; ValueError if there is none."""
    for use in trials[0]:
        if all(use in each for each in trials):
            return use
    raise ValueError("parts of a step look up something else than the whole")


def _trying(step: additive.Additive) -> keras.StatelessScope:
    """Where no variable changes."""
    return keras.StatelessScope([(variable, variable.value) for variable in step.variables], collect_losses=True)


def _numbers(added: additive.Contribution) -> list[Any]:
    return [*added.moved, *(one if one is None else tf.convert_to_tensor(one) for one in added.gradients)]
