"""A step tried on a few made-up rows before the first one, to find which layers must see the whole batch.

Each outermost call of a layer is tried alone, and as two workers that are threads of this process; what it returns and what it would
keep must be the same. No variable changes meanwhile.
"""

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras.src.layers.normalization.batch_normalization import BatchNormalization
from keras.src.ops.operation import Operation

from trainer import additive, collective, whole
from trainer.agreement import Agreement, digest
from trainer.optimizer import copies_weights, inner
from trainer.replacing import replaced
from trainer.terminal import printable
from trainer.undoing import State, is_users, undone

ROWS, UNKNOWN = 5, 4
"""Rows of a made-up batch, of which two workers have unequal parts; size of its dimensions that are not known."""
FEWEST, MOST = 3, 512
"""Rows of a real batch that is tried."""
STRETCHED = ("is_floating", 0.0, 255.0), ("is_floating", -1.0, 1.0), ("is_integer", 0.0, 255.0)
"""Kinds of made-up numbers and the bounds that they are tried in, too, where code is the user's own: what it mixes may be too small to see
between 0 and 1, or 0."""
MISSING = 0.3
"""Part of the numbers that are NaN in one more trial: what fills them in may be a mean of others."""
SAMPLE_BYTES = 2**22
"""Most bytes of real rows that are tried, unless fewer than `ROWS` have as many."""
FIRST_IMAGE = (
    "gives every row the first image, distorted, as in Keras' own fit where the last batch is smaller: it transforms as many images "
    "as are known when a step is traced. Fix: distort images in the data"
)
SEES_ALL = "sees the whole batch, and all workers compute the same of it"
TOLERANCE, HALF_TOLERANCE = 2e-5, 2e-2
"""Largest difference by rounding, relative to the largest number of an array; the second of layers that compute in 16 bits."""
GATHERED = 2**16
"""Most bytes of a row's outputs that are gathered for losses and metrics of the user's own which seem to add up."""
PATIENCE_S = 60.0
"""Seconds for the slower of two threads."""


class Threads:
    """Workers that are threads of one process, and exchange arrays when all have come; `alternating` ones run one at a time in between."""

    def __init__(self, workers: int, alternating: bool = False, patience_s: float = PATIENCE_S):
        """Make as many `members`, which wait for each other for at most `patience_s` seconds."""
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
        self._turn.__exit__(None, None, None)
        try:
            yield
        finally:
            self._turn.__enter__()

    def run(self, work: Callable[["Member"], Any]) -> list[Any]:
        """What each member's work returns; the first error if one fails."""
        results, errors = [None] * len(self.members), list[BaseException]()

        def one(member: Member) -> None:
            try:
                with self._turn:
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


class _Part(whole.Step):
    """A worker's part of a call, which changes nothing."""

    keeps = False


def unequal(rows: int) -> tuple[int, int]:
    """Two workers' parts of a made-up batch: what has the same size in both is not of its rows."""
    return rows // 2 + 1, rows - rows // 2 - 1


class Rehearsal(whole.Step):
    """A step on one worker, run eagerly, that tries each outermost call in parts, too."""

    keeps = False
    _static: int

    def __init__(
        self,
        seeing_all: set[Operation],
        fixed: dict[Operation, set[int]] | None = None,
        rows: int = ROWS,
        counted: bool = False,
        real: bool = False,
    ):
        """As `rehearse`; `real`: whether the data is."""
        self._found, self._counted, self._real = {} if fixed is None else fixed, counted, real
        super().__init__(collective.Alone(), seeing_all, rows, fixed=self._found)
        self.differing: list[str] = []
        """Layers that have other results on two workers, whatever sees the whole batch."""
        self.sparse = False
        """Whether a gradient is one of some rows, as that of an Embedding."""
        self.row_bytes = 0
        """Bytes of all outermost calls' results for one row."""

    def outermost(self, call: Callable[..., Any], layer: keras.Layer, arguments: Any) -> Any:
        """See `Step`."""
        leading = {leaf.shape[0] for leaf in tf.nest.flatten(arguments) if whole.leads(leaf)}
        self._found.setdefault(layer, set()).update(size for size in leading if size is not None and size % self._static)
        own = whole.own_layers(layer)
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
                before.restore()
                self._try(layer, arguments)
            for one, added in losses:
                one._losses[:] = added
        return results

    def gradients(self, local: Sequence[Any]) -> list[Any]:
        """See `Step`."""
        self.sparse = self.sparse or any(isinstance(one, tf.IndexedSlices) for one in local)
        return list(local)

    def _try(self, layer: keras.Layer, arguments: Any) -> None:
        alone = _Part(collective.Alone(), self._seeing_all, self._static)
        with alone(), alone.everything():
            agree = self._try_with(layer, arguments)
            own = not self._real and any(not whole.of_keras(one) for one in operations(layer))
            for others in stretched(arguments) if own else ():
                # A number may be an index, which has other bounds.
                with contextlib.suppress(Exception):
                    agree = self._try_with(layer, others) and agree
        if not agree:
            self.differing.append(layer.name)

    def _try_with(self, layer: keras.Layer, arguments: Any) -> bool:
        calls = list[Call]()
        with _noting(layer, calls):
            expected, scope = _called(layer, arguments)
        seeing = self._seeing_all
        seeing |= _keeping(layer, scope) | _mixing(calls, self._static)
        for more in (set[Operation](), *_candidates(layer)):
            tried = seeing | more
            if self._agrees(layer, arguments, expected, tried):
                seeing |= tried
                return True
        return False

    def _agrees(self, layer: keras.Layer, arguments: Any, expected: list[Any], seeing: set[Operation]) -> bool:
        while True:
            parts = list[whole.Step]()

            def part(member: Member, parts: list[whole.Step] = parts) -> list[Any]:
                step = _Part(collective.OnHost(member), seeing, self._static, unequal(self._static), self._found)
                parts.append(step)
                with step():
                    return _called(layer, arguments)[0]

            try:
                agree = all(_same(layer, expected, found) for found in Threads(2, alternating=True).run(part))
            except whole.SeesAll as error:
                seeing.add(error.layer)
                continue
            except Exception:
                # Such as an index of another worker's row.
                agree = False
            if not self._finds_fixed(parts, seeing):
                return agree

    def _finds_fixed(self, parts: Sequence[whole.Step], seeing: set[Operation]) -> bool:
        """Whether some first dimensions inside the call are found not to be rows: two unequal parts of it have the same.

        Their layer sees the whole batch where these may be as many as the rows of a real one.
        """
        new = False
        for layer in parts[0].sizes.keys() & parts[-1].sizes.keys():
            more = parts[0].sizes[layer] & parts[-1].sizes[layer] - self._found.setdefault(layer, set())
            self._found[layer] |= more
            new = new or bool(more)
            if more and self._counted:
                seeing.add(layer)
        return new


def _called(layer: keras.Layer, arguments: Any) -> tuple[list[Any], keras.StatelessScope]:
    """What a call returns, and what it would assign, by variable; and where that is."""
    with keras.StatelessScope() as scope:
        results = layer(*arguments[0], **arguments[1])
    kept = [scope.get_current_value(variable) for variable in layer.variables]
    return [*tf.nest.flatten(results), *kept], scope


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
        for one in operations(layer):
            if not whole.of_keras(one) and not any(isinstance(each, (BatchNormalization, *whole.MIXING)) for each in _layers_of(one)):
                patched.enter_context(replaced(one, "call", noting(one, one.call)))
        yield


def _layers_of(operation: Operation) -> list[keras.Layer]:
    """The layers in an operation, itself first if it is one."""
    return list(operation._flatten_layers()) if isinstance(operation, keras.Layer) else []


def _mixing(calls: Sequence[Call], count: int) -> set[Operation]:
    """Those that mix rows themselves, or in what is no operation; `count`: rows."""
    found = set[Operation]()
    for one, call, given, named in calls:
        if found.isdisjoint(_layers_of(one)) and _mixes(call, given, named, count):
            found.add(one)
    return found


def _mixes(call: Callable[..., Any], given: Sequence[Any], named: dict[str, Any], count: int) -> bool:
    """Whether the first row's results move with other rows' numbers, however little, or would if these were no numbers."""

    def has_rows(leaf: Any) -> bool:
        return isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating and bool(leaf.shape.rank) and leaf.shape[0] % count == 0

    def spoiled(leaf: Any) -> Any:
        return tf.concat([leaf[: len(leaf) // count], leaf[len(leaf) // count :] * np.nan], 0) if has_rows(leaf) else leaf

    def first(given: Any, named: Any) -> list[Any]:
        return [one[: len(one) // count] for one in tf.nest.flatten(call(*given, **named)) if has_rows(one)]

    rows = list(filter(has_rows, tf.nest.flatten((given, named))))
    # A function that has no gradient shows nothing; its values are tried, too.
    with contextlib.suppress(Exception), keras.StatelessScope(), tf.GradientTape() as tape:
        tape.watch(rows)
        results = first(given, named)
        moves = zip(rows, tape.gradient(results, rows), strict=True)
        if any(move is not None and np.any(np.nan_to_num(tf.convert_to_tensor(move))[len(row) // count :]) for row, move in moves):
            return True
        # Even what is multiplied by 0, such as by a gate that is closed at first.
        others = first(*tf.nest.map_structure(spoiled, (given, named)))
        return any(bool(np.any(np.isnan(other) & ~np.isnan(one))) for one, other in zip(results, others, strict=True))
    return False


def _keeping(layer: keras.Layer, scope: keras.StatelessScope) -> set[Operation]:
    """The user's own layers in a layer that would assign variables: what they keep may be a sum, a mean, or a count."""
    return {one for one in whole.own_layers(layer) if any(scope.get_current_value(each) is not None for each in _own_variables(one))}


def _own_variables(layer: keras.Layer) -> list[keras.Variable]:
    return [*layer._trainable_variables, *layer._non_trainable_variables, *(one for metric in layer._metrics for one in metric.variables)]


def _same(layer: keras.Layer, expected: Iterable[Any], found: Iterable[Any]) -> bool:
    halves = any(tf.as_dtype(one.compute_dtype or "float32").size < tf.float32.size for one in layer._flatten_layers())
    return all(_alike(one, other, HALF_TOLERANCE if halves else TOLERANCE) for one, other in zip(expected, found, strict=True))


def _alike(expected: Any, found: Any, tolerance: float) -> bool:
    if expected is None or found is None or not tf.is_tensor(expected):
        return (expected is None) == (found is None)
    dense = [value.to_tensor() if isinstance(value, tf.RaggedTensor) else tf.convert_to_tensor(value) for value in (expected, found)]
    one, other = map(np.asarray, dense)
    if one.shape != other.shape or one.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    scale = float(np.max(np.abs(one), initial=0.0, where=np.isfinite(one))) or 1.0
    return bool(np.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def operations(layer: keras.Layer) -> list[Operation]:
    """All layers in a layer, itself first, and the functions of functional models; in the same order on all workers."""
    layers = list(layer._flatten_layers())
    return [*layers, *(one for parent in layers for one in getattr(parent, "operations", ()) if not isinstance(one, keras.Layer))]


def _candidates(layer: keras.Layer) -> Iterator[set[Operation]]:
    """The operations in a layer that may mix rows: by class, the innermost first, then together; the user's own before Keras'."""
    every = operations(layer)
    for some in ([one for one in every if not whole.of_keras(one)], [one for one in every if whole.of_keras(one)]):
        yield from ({one for one in some if type(one) is kind} for kind in dict.fromkeys(map(type, reversed(some))))
        if some:
            yield set(some)
    yield set(every)


def made_up(specs: Any, rows: int = ROWS) -> Any:
    """Rows of a batch's structure: numbers between 0 and 1, whole ones 0 and 1."""
    numbers = np.random.default_rng(0)

    def leaf(spec: Any) -> Any:
        if not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec):
            return None
        if isinstance(spec, tf.RaggedTensorSpec):
            lengths = [1 + row % UNKNOWN for row in range(rows)] if spec.ragged_rank == 1 and spec.shape[1] is None else None
            return tf.RaggedTensor.from_tensor(dense(spec), lengths, ragged_rank=spec.ragged_rank)
        return tf.sparse.from_dense(dense(spec)) if isinstance(spec, tf.SparseTensorSpec) else dense(spec)

    def dense(spec: Any) -> tf.Tensor:
        shape = (rows, *(UNKNOWN if size is None else size for size in spec.shape[1:]))
        drawn = numbers.random(shape)
        if spec.dtype == tf.string:
            return tf.constant(np.where(drawn < 0.5, b"a", b"b").astype(object))
        return tf.cast(drawn if spec.dtype.is_floating else drawn < 0.5, spec.dtype)

    return tf.nest.map_structure(leaf, specs)


def rows_of(specs: Any) -> int | None:
    """Rows of a batch, where its structure says how many."""
    shapes = [getattr(spec, "shape", None) for spec in tf.nest.flatten(specs)]
    return next((shape[0] for shape in shapes if shape is not None and shape.rank), None)


def stretched(data: Any) -> Iterator[Any]:
    """Made-up rows in other bounds, with gaps, and with texts of several words, which may mean nothing."""
    tensors = [leaf for leaf in tf.nest.flatten(data) if isinstance(leaf, tf.Tensor)]
    for kind, least, most in STRETCHED:
        if any(getattr(leaf.dtype, kind) for leaf in tensors):
            yield tf.nest.map_structure(functools.partial(_between, kind, least, most), data)
    if any(leaf.dtype.is_floating for leaf in tensors):
        numbers = np.random.default_rng(1)
        yield tf.nest.map_structure(functools.partial(_with_gaps, numbers), data)
    if any(leaf.dtype == tf.string for leaf in tensors):
        yield tf.nest.map_structure(_longer, data)


def _with_gaps(numbers: np.random.Generator, leaf: Any) -> Any:
    if not isinstance(leaf, tf.Tensor) or not leaf.dtype.is_floating:
        return leaf
    return tf.where(numbers.random(leaf.shape) < MISSING, np.nan, leaf)


def _longer(leaf: Any) -> Any:
    """Texts of 1 to `UNKNOWN` words, by row."""
    if not isinstance(leaf, tf.Tensor) or leaf.dtype != tf.string or not leaf.shape.rank:
        return leaf
    counts = 1 + np.arange(len(leaf)) % UNKNOWN
    return tf.constant((np.asarray(leaf).T + b" ") * counts).T


def _between(kind: str, least: float, most: float, leaf: Any) -> Any:
    if not isinstance(leaf, tf.Tensor) or not getattr(leaf.dtype, kind):
        return leaf
    return tf.cast(least, leaf.dtype) + tf.cast(most - least, leaf.dtype) * leaf


def no_batch() -> None:
    """There is none yet."""


class Placements:
    """Layers of a model that see the whole batch: found on made-up rows or, where that can't be, while a step is traced."""

    def __init__(self, model: keras.Model, workers: Agreement, warn: Callable[[str], None]):
        """Begin with none; warnings go to the user."""
        self._model, self._workers, self._warn = model, workers, warn
        self.seeing_all = set[Operation]()
        self.fixed: dict[Operation, set[int]] = {}
        """As of `whole.Step`."""
        self._trials = list[Trial]()
        """Those that a step can take."""
        self.one_by_one = False
        """Whether Keras' optimizer updates repeated rows of a variable one by one, so that their gradients can't be added up before."""
        if copies_weights(model.optimizer):
            name = type(inner(model.optimizer)).__name__
            warn(f"{name} begins with the model's weights; Keras' own fit begins with zeros unless it is eager")

    def by_rows(self, own: Callable[[Any], Any]) -> additive.Additive:
        """A `train_step` or `test_step` of the model, computed by rows."""
        return additive.Additive(self._model, own, self.seeing_all, self.fixed)

    def rehearse(self, step: Callable[[Any], Any], specs: Any, sample: Callable[[], Any]) -> list[Rehearsal]:
        """Try a step of a kind as `rehearse`, on made-up rows, and on real ones if code is the user's own; all workers do, and agree.

        Args:
            step: of the model.
            specs: of its batches.
            sample: returns the first of them, or None.
        """
        before, rehearsed, why = set(self.seeing_all), list[Rehearsal](), ""
        counted, self._trials = rows_of(specs) is not None or bool(self._model.run_eagerly), []
        for trial in self._batches(specs, sample):
            try:
                with undone(self._own()):
                    rehearsed.append(rehearse(step, trial, self.seeing_all, self.fixed, counted))
                self._trials.append(trial)
            except Exception as error:
                why = why or next(filter(str.strip, str(error).splitlines()), type(error).__name__)
        if not rehearsed:
            self._warn(f"the step could not be tried on made-up rows, so nobody knows whether its layers mix rows: {printable(why)}")
        every = operations(self._model)
        table = self._workers.gather([one in self.seeing_all for one in every])
        self.seeing_all |= {one for one, sees in zip(every, table.sum(axis=0).tolist(), strict=True) if sees}
        for name in dict.fromkeys(name for one in rehearsed for name in one.differing):
            self._warn(f"{name} has other results on several workers than on one")
        for one in self.seeing_all - before:
            self._warn(f"{one.name} {SEES_ALL}")
        return rehearsed

    def _batches(self, specs: Any, sample: Callable[[], Any]) -> Iterator["Trial"]:
        """Made-up rows, then real ones if there is code of the user's own, or if the step has not taken those."""
        yield Trial.made_up(specs)
        model = self._model
        own = additive.overridden(model) or additive.unknown(model) or not all(map(whole.of_keras, operations(model)))
        if (own or not self._trials) and (real := Trial.of(sample())) is not None:
            # Where workers have different ones, the first step says so.
            if len(set(self._workers.digests(real.digest))) == 1:
                yield real

    def _own(self) -> list[Any]:
        """What has code of the user's own."""
        every = {id(one): one for one in [*additive.compiled_with(self._model), *self._model.metrics]}.values()
        return [*whole.own_layers(self._model), *(one for one in every if hasattr(one, "__dict__") and is_users(one))]

    def adds_up(self, step: additive.Additive, specs: Any, sample: Callable[[], Any] = no_batch) -> bool:
        """Whether a step is computed by rows: all workers try it, as `rehearse` does, and agree.

        It is where that is known, or was checked and is much cheaper than to gather outputs.
        """
        optimizer, layers = self._model.optimizer, list(self._model._flatten_layers())
        for layer in layers if rows_of(specs) is None else ():
            if isinstance(layer, keras.layers.RandomElasticTransform):
                self._warn(f"{layer.name} {FIRST_IMAGE}")
        if self._workers.member.workers == 1:
            embeds = any(isinstance(layer, keras.layers.Embedding) for layer in layers)
            self.one_by_one = embeds and not additive.linear(optimizer)
            return not additive.overridden(self._model)
        if additive.overwrites(self._model):
            self.seeing_all |= {*layers}
        rehearsed, names = self.rehearse(step.own, specs, sample), additive.unknown(self._model)
        sparse = any(one.sparse for one in rehearsed) and not additive.linear(optimizer)
        self.one_by_one = bool(self._workers.gather([sparse]).any())
        size = max((one.row_bytes for one in rehearsed), default=0)
        may = bool(rehearsed) and additive.of_keras(self._model) and (not names or size > GATHERED)
        with undone(self._own()):
            may = may and all(adds_up(step, trial) for trial in self._trials)
        if not self._workers.gather([may]).all():
            return False
        if names:
            self._warn(f"{', '.join(names)}: taken to add up over rows, as on made-up ones; to gather outputs takes {size} bytes a row")
        return True

    def see_all(self, error: whole.SeesAll) -> None:
        """Note a layer that was found while a step was traced."""
        self.seeing_all.add(error.layer)
        for layer in self._model._flatten_layers():
            layer._clear_losses()
        self._warn(f"{error}, so it {SEES_ALL}")


def rehearse(
    step: Callable[[Any], Any],
    trial: "Trial",
    seeing_all: set[Operation],
    fixed: dict[Operation, set[int]] | None = None,
    counted: bool = False,
) -> Rehearsal:
    """Try a step, which makes all variables that the first one would make.

    Args:
        step: a model's own `train_step`.
        trial: what it takes.
        seeing_all: where to add the layers that must see the whole batch.
        fixed: where to add what has none of its rows, as of `whole.Step`.
        counted: whether the number of rows of real batches is known when a step is traced, or always, as in eager steps.
    """
    rehearsal = Rehearsal(seeing_all, fixed, trial.rows, counted, trial.real)
    with rehearsal(), _Eagerly():
        step(trial.data)
    return rehearsal


class Trial(NamedTuple):
    """A batch that a step is tried on."""

    data: Any
    rows: int
    real: bool = False

    @classmethod
    def made_up(cls, specs: Any) -> "Trial":
        """See `made_up`."""
        return cls(made_up(specs), ROWS)

    @classmethod
    def of(cls, batch: Any) -> "Trial | None":
        """Some rows of a real batch, if there are enough."""
        if batch is None:
            return None
        data = tf.nest.map_structure(_tensor, batch)
        rows = int(whole.first(whole.leading(data)))
        size = sum(one.size * one.itemsize for one in _arrays(data))
        rows = min(rows, MOST, max(ROWS, SAMPLE_BYTES * rows // max(size, 1)))
        if rows < FEWEST:
            return None
        some = whole.Rows(rows, 0, rows)
        return cls(tf.nest.map_structure(lambda leaf: some.take(leaf) if whole.leads(leaf) else leaf, data), rows, real=True)

    @property
    def digest(self) -> str:
        """Of its numbers and texts."""
        texts = [repr(one.tolist()).encode() if one.dtype == object else one for one in _arrays(self.data)]
        return digest([np.frombuffer(one, np.uint8) if isinstance(one, bytes) else one for one in texts])


def _tensor(leaf: Any) -> Any:
    """A leaf as a tensor; None where Keras gives a step none."""
    if leaf is None or isinstance(leaf, tf.experimental.Optional):
        return None
    return leaf if tf.is_tensor(leaf) else tf.convert_to_tensor(leaf)


def _arrays(data: Any) -> list[np.ndarray]:
    return [np.asarray(one) for one in tf.nest.flatten(data, expand_composites=True) if one is not None]


class _Eagerly:
    """Lets functions that are traced inside of a step run as they are: what is traced now would count as their first trace.

    The setting is that of the process, whose threads may be workers.
    """

    _inside, _lock, _before = 0, threading.Lock(), False

    def __enter__(self) -> None:
        with _Eagerly._lock:
            if not _Eagerly._inside:
                _Eagerly._before = tf.config.functions_run_eagerly()
                tf.config.run_functions_eagerly(True)
            _Eagerly._inside += 1

    def __exit__(self, *_: object) -> None:
        with _Eagerly._lock:
            _Eagerly._inside -= 1
            if not _Eagerly._inside:
                tf.config.run_functions_eagerly(_Eagerly._before)


def adds_up(step: additive.Additive, trial: Trial) -> bool:
    """Whether two workers' parts of a step add up to what one computes."""
    step = copy.copy(step)
    step.keeps = False
    if not _parts_add_up(step, trial.data, trial.rows):
        return False
    more = stretched(trial.data) if additive.unknown(step.model) and not trial.real else ()
    return all(_parts_add_up(step, others, trial.rows, may_fail=True) for others in more)


def _parts_add_up(step: additive.Additive, data: Any, rows: int, may_fail: bool = False) -> bool:
    """`may_fail`: whether the data may mean nothing, which then says nothing."""

    def part(member: Member) -> list[Any]:
        group = collective.OnHost(member)
        with _trying(step):
            every, _ = step.added(group, data, unequal(rows)).summed(group)
        return _numbers(every)

    try:
        with _trying(step):
            alone = _numbers(step.alone(data))
    except Exception:
        return may_fail
    try:
        return all(len(alone) == len(found) and _same(step.model, alone, found) for found in Threads(2, alternating=True).run(part))
    except (Exception, whole.SeesAll):
        return False


def _trying(step: additive.Additive) -> keras.StatelessScope:
    """Where no variable changes."""
    return keras.StatelessScope([(variable, variable.value) for variable in step.variables], collect_losses=True)


def _numbers(added: additive.Added) -> list[Any]:
    return [*added.moved, *(one if one is None else tf.convert_to_tensor(one) for one in added.gradients)]
