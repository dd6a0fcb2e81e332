"""From what Keras' `fit` takes to examples of one spec, checked batch by batch.

A result is a whole (arrays, dicts of them, a frame, a tuple of those) or batches (a generator, `tf.data.Dataset`,
`keras.utils.PyDataset`, or any other iterable). Neither TensorFlow nor pandas is imported: their objects are known by what they offer.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from warnings import WarningMessage

import numpy as np

from control.datasets.listing import specs
from control.datasets.listing.specs import DTYPES, LONGEST_NAME, MOST_LEAVES
from trainer.common.errors import DatasetError
from trainer.common.safe_text import printable
from trainer.common.suggest import nearest
from trainer.data.spec import PARTS, STRING, Leaf, Spec

HOW = (
    "return or yield what Keras' fit takes: arrays or dicts of arrays, (x, y[, sample_weight]), batches of those, a tf.data.Dataset, "
    "a keras.utils.PyDataset or a pandas frame"
)
RAGGED_HOW = "sequences of different lengths are np.array(list, dtype=object) with an array for each example, or a tf.RaggedTensor"
SLICE_BYTES = 2**25
"""Bytes of a whole result that are converted at a time."""
OBJECT_BYTES = 64
"""A string's, besides its characters."""
LONGEST_KEY = 60
"""Characters of a key in a leaf's name, which is only for people: the structure has the whole key."""
EXACT = 2**24
"""Up to this magnitude, float32 holds every whole number."""
SHOWN = 5
"""Columns named in a warning; warnings of the user's own function."""


@dataclass
class Column:
    """One leaf of a batch: its examples, converted as far as their type needs."""

    leaf: Leaf
    examples: Any
    """An array `[n, ...]`, or n arrays if their shapes vary."""


@dataclass
class ExampleChecker:
    """Turns nests into the values of one spec, which the first batch decides; errors name the dataset, the split and the batch."""

    called: str
    """The dataset, as the user typed it."""
    shapes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    """Declared shapes of leaves, without the batch dimension; None varies."""
    spec: Spec | None = None
    first: str = "the first batch"
    """Origin of the spec, in messages."""
    casting: str = "safe"
    """NumPy's rule for numbers of another type than the spec's."""
    not_finite: dict[str, int] = field(default_factory=dict)
    """How many values are NaN or infinite, by leaf of `x`."""
    rounded: list[str] = field(default_factory=list)
    """Leaves with whole numbers that their type rounds."""
    nearly_numbers: list[str] = field(default_factory=list)
    """Columns of strings that are numbers but for a few, each with the first value that is none."""
    seen: dict[str, int] = field(default_factory=dict)
    """Examples so far, by split."""
    caught: list[WarningMessage] = field(default_factory=list)
    """Warnings of the user's function so far."""

    def slices(self, nest: Any, split: str, where: str) -> Iterator[list[Any]]:
        """The values of a batch for each leaf of the spec, in slices; the first call decides the spec.

        Raises:
            DatasetError: different lengths, another structure, type or shape than before, values that are no numbers or strings.
        """
        place = f"{self.called}: {where} of {split}"
        structure, named = flattened(nest, place)
        columns = [_column(value, name, place, self.shapes.get(name)) for name, value in named]
        counts = {column.leaf.name: len(column.examples) for column in columns}
        if len(set(counts.values())) != 1:
            raise DatasetError(f"{place}: {_lengths(counts)}; each array has one entry per example. {_first_upper(RAGGED_HOW)}")
        if self.spec is None:
            self.spec = specs.checked(Spec(structure, tuple(column.leaf for column in columns)).to_json())
        self._check(structure, columns, place)
        total = next(iter(counts.values()))
        for start, stop in _slices(columns, total):
            yield [self._values(column, split, start, stop) for column in columns]
        self.seen[split] = self.seen.get(split, 0) + total

    def warnings(self) -> list[str]:
        """Warnings for the user: the function's own, then those about the values of `x`."""
        warnings = noted(self.called, self.caught)
        if self.not_finite:
            most = sorted(self.not_finite.items(), key=lambda item: -item[1])
            listed = _some([f"{name} {count:,}" for name, count in most])
            warnings.append(
                f"{self.called} has values that are missing (NaN) or infinite: {listed}. The loss becomes NaN, too, unless the model "
                "replaces them. Fix: fill them in, or leave these columns out (-e set=data.features=[...])"
            )
        if self.nearly_numbers:
            warnings.append(
                f"{self.called} has columns of strings that are numbers but for a few: {_some(self.nearly_numbers)}. "
                "Fix, if numbers are meant: leave a missing value empty, or write NA"
            )
        if self.rounded:
            warnings.append(
                f"{self.called} has whole numbers above {EXACT:,} that float32 rounds: {_some(self.rounded)}. Fix, if they are names "
                "rather than amounts: make them strings, or whole numbers with none missing"
            )
        return warnings

    def _check(self, structure: Any, columns: list[Column], place: str) -> None:
        assert self.spec is not None
        if structure != self.spec.structure or [column.leaf.name for column in columns] != list(self.spec.names):
            given, first = (printable(", ".join(names), 200) for names in ([column.leaf.name for column in columns], self.spec.names))
            raise DatasetError(f"{place} has another structure than {self.first}: {given}; {self.first} has {first}")
        for column, leaf in zip(columns, self.spec.leaves, strict=True):
            column.leaf = self._as_before(column.leaf, leaf, place)

    def _as_before(self, leaf: Leaf, first: Leaf, place: str) -> Leaf:
        """The spec's leaf, if this one fits it: numbers by the rule, and a dimension that varies takes any length."""
        types = (leaf.dtype, first.dtype)
        if leaf.dtype != first.dtype and (STRING in types or not np.can_cast(*types, self.casting)):  # type: ignore[arg-type]
            raise DatasetError(f"{place}: {leaf.name} is {leaf.dtype}, and {first.dtype} in {self.first}; make all of one type")
        same = len(leaf.shape) == len(first.shape) and all(
            side == other or other is None for side, other in zip(leaf.shape, first.shape, strict=True)
        )
        if not same:
            raise DatasetError(f"{place}: an example is {leaf}, and {first} in {self.first}. {_first_upper(RAGGED_HOW)}")
        return first

    def _values(self, column: Column, split: str, start: int, stop: int) -> Any:
        leaf, examples = column.leaf, column.examples[start:stop]
        if leaf.dtype == STRING:
            return examples
        if leaf.varies:
            examples = [np.asarray(example, leaf.dtype) for example in examples]
            numbers = np.concatenate([example.ravel() for example in examples]) if examples else np.zeros(0)
        else:
            if leaf.name not in self.rounded and _loses_digits(examples, leaf):
                self.rounded.append(leaf.name)
            with np.errstate(over="ignore"):
                numbers = np.asarray(examples, leaf.dtype)
            if numbers.dtype.kind in "iu" and numbers.dtype != examples.dtype and not np.array_equal(numbers, examples):
                raise DatasetError(f"{self.called}: {leaf.name} of {split} has whole numbers that {leaf.dtype} does not hold")
            examples = numbers
        if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            self._count_not_finite(leaf, split, start, examples)
        return examples

    def _count_not_finite(self, leaf: Leaf, split: str, start: int, examples: Any) -> None:
        bad = [np.count_nonzero(~np.isfinite(example)) for example in examples]
        part = leaf.name.partition(".")[0].partition("[")[0]
        if part != "x":
            number = self.seen.get(split, 0) + start + int(np.flatnonzero(bad)[0])
            raise DatasetError(
                f"{self.called}: {leaf.name} of example {number} of {split} is NaN or infinite; no loss can be computed from it. "
                "Fix: leave such examples out, or fill in a value"
            )
        self.not_finite[leaf.name] = self.not_finite.get(leaf.name, 0) + int(sum(bad))


def flattened(nest: Any, place: str) -> tuple[list[Any], list[tuple[str, Any]]]:
    """The structure of a batch and its leaves, each with its name, as in a Spec.

    As in Keras, a list at the top is a tuple; `None` at its end is left out.
    """
    parts = list(nest) if isinstance(nest, tuple | list) else [nest]
    while len(parts) > 1 and parts[-1] is None:
        parts.pop()
    if not 1 <= len(parts) <= len(PARTS) or any(part is None for part in parts):
        raise DatasetError(f"{place} is {value_text(nest)}; {HOW}")
    leaves: list[tuple[str, Any]] = []
    structure = [_flattened(part, name, leaves, place) for name, part in zip(PARTS, parts, strict=False)]
    return structure, leaves


def repeated(names: Iterable[Any]) -> Any | None:
    """The first name that comes more than once; None if none does."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def _by_column(frame: Any, place: str) -> dict[Any, Any]:
    """The columns of a frame."""
    names = list(frame.columns)
    if (twice := repeated(names)) is not None:
        raise DatasetError(f"{place}: the frame has the column {printable(str(twice), 60)} twice; rename one")
    return {name: frame[name] for name in names}


def _flattened(nest: Any, name: str, leaves: list[tuple[str, Any]], place: str) -> Any:
    if _is_frame(nest):
        nest = _by_column(nest, place)
    if isinstance(nest, dict):
        odd = [key for key in nest if not isinstance(key, str)]
        if odd or not nest:
            raise DatasetError(f"{place}: the keys of {name} are {value_text(odd) if odd else 'none'}; they must be text")
        return {key: _flattened(part, f"{name}.{printable(key, LONGEST_KEY)}"[:LONGEST_NAME], leaves, place) for key, part in nest.items()}
    if isinstance(nest, list | tuple) and any(_is_nest(item) for item in nest):
        if len(nest) > MOST_LEAVES:
            raise DatasetError(f"{place}: {name} is a list of {len(nest):,} arrays, each an input of its own; {RAGGED_HOW}")
        return [_flattened(part, f"{name}[{number}]", leaves, place) for number, part in enumerate(nest)]
    if len(leaves) >= MOST_LEAVES:
        raise DatasetError(f"{place} has more than {MOST_LEAVES:,} arrays; put columns of one type into one array [examples, columns]")
    leaves.append((name, nest))
    return len(leaves) - 1


def _is_frame(value: Any) -> bool:
    return hasattr(value, "columns") and hasattr(value, "iloc")


def _is_nest(value: Any) -> bool:
    """Return whether an item of a list is an input of its own, not an example."""
    return isinstance(value, dict | tuple) or _is_frame(value) or bool(getattr(value, "shape", ()))


def is_whole(result: Any) -> bool:
    """Return whether a result is all examples at once, or has numbered batches: neither is inspected by iterating."""
    return hasattr(result, "num_batches") or not hasattr(result, "__iter__") or isinstance(result, tuple | dict) or _has_shape(result)


def _has_shape(result: Any) -> bool:
    return _is_frame(result) or hasattr(result, "shape") or hasattr(result, "row_splits")


def batches(result: Any, called: str, split: str) -> Iterator[tuple[str, Any]]:
    """The batches of a result with their names in messages; a whole result is one."""
    if hasattr(result, "num_batches") and hasattr(result, "__getitem__"):
        yield from _of_pydataset(result, f"{called}: {split}")
    elif hasattr(result, "as_numpy_iterator"):
        if int(getattr(result, "cardinality", int)()) == -1:
            raise DatasetError(f"{called}: the tf.data.Dataset of {split} is infinite; leave out repeat(): Lockstep repeats by itself")
        yield from _numbered(result.as_numpy_iterator())
    elif isinstance(result, tuple | dict) or _has_shape(result):
        yield "the data", result
    elif isinstance(result, list) and not (result and isinstance(result[0], tuple)):
        yield "the data", (result,)
    elif hasattr(result, "__iter__"):
        yield from _numbered(result)
    else:
        raise DatasetError(f"{called}: for {split} it returned {value_text(result)}; {HOW}")


def _numbered(items: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"batch {number}", item) for number, item in enumerate(items))


def _of_pydataset(result: Any, place: str) -> Iterator[tuple[str, Any]]:
    count = result.num_batches
    if count is None:
        raise DatasetError(f"{place}: the PyDataset has no number of batches; its __len__ must return one")
    for number in range(count):
        try:
            batch = result[number]
        except (IndexError, StopIteration):
            raise DatasetError(f"{place}: the PyDataset ended at batch {number}; its __len__ says {count}. Fix: make both agree") from None
        yield f"batch {number}", batch


def declared_shapes(result: Any, place: str) -> dict[str, tuple[int | None, ...]]:
    """The shapes that a tf.data.Dataset declares, by leaf, without the batch dimension."""
    if not hasattr(result, "element_spec"):
        return {}
    _, leaves = flattened(result.element_spec, place)
    shapes = {name: getattr(leaf, "shape", None) for name, leaf in leaves}
    return {name: tuple(shape)[1:] for name, shape in shapes.items() if shape is not None and shape.rank}


@dataclass(frozen=True)
class ColumnChoice:
    """The columns of a dataset that a model gets: `data.target` and `data.features`."""

    target: str | None
    """The column that becomes `y`."""
    features: Sequence[str] | None
    """Columns of `x`; None: all but the target."""
    called: str
    """The dataset, as the user typed it."""

    def divided(self, nest: Any) -> Any:
        """A frame or dict of columns as `(x, y)`."""
        if self.target is None and self.features is None:
            return nest
        if _is_frame(nest):
            nest = _by_column(nest, self.called)
        if not isinstance(nest, dict):
            raise DatasetError(
                f"{self.called}: data.target and data.features name columns, and it gives {value_text(nest)}; leave them out"
            )
        self.check(list(nest))
        x = {name: nest[name] for name in self._of_x(nest)}
        return x if self.target is None else (x, nest[self.target])

    def check(self, names: Sequence[str]) -> None:
        """Refuse a target or features that are no columns (DatasetError, with the nearest one), and no column for `x`, or too many."""
        known = set(names)
        for key, name in [("data.target", self.target), *(("data.features", feature) for feature in self.features or ())]:
            if name is not None and name not in known:
                raise DatasetError(f"{key}={name}: {self.called} has no such column{nearest(name, names)}; there are: {listed(names)}")
        x = self._of_x(names)
        if not x:
            raise DatasetError(f"{self.called}: there is no column besides data.target={self.target}; a model needs at least one")
        if len(x) + (self.target is not None) > MOST_LEAVES:
            some = printable(",".join(map(str, x[:2])), 100)
            raise DatasetError(
                f"{self.called} has {len(x):,} columns for a model; with the target, at most {MOST_LEAVES:,} are read. Fix: name those "
                f"that it needs, as in -e 'set=data.features=[{some}]', or put columns of one type into one array [examples, columns] in a "
                "function: -e dataset=FILE.py:FUNCTION"
            )

    def _of_x(self, names: Iterable[str]) -> list[str]:
        return [name for name in (self.features or names) if name != self.target]


def listed(names: Iterable[Any]) -> str:
    """The first names of columns, for a message."""
    first = list(map(str, itertools.islice(names, 21)))
    return printable(", ".join(first[:20]) + (", ..." if len(first) > 20 else ""), 1000)


def _column(value: Any, name: str, place: str, declared: tuple[int | None, ...] | None) -> Column:
    what = f"{place}: {name}"
    if hasattr(value, "row_splits"):
        return _ragged(_rows_of_ragged(value, what), name, what)
    array = _array(value, what)
    if array.ndim == 0:
        raise DatasetError(
            f"{what} is a single value, {value_text(array.item())}; the first dimension of an array is that of the examples. "
            "Fix: yield batches (tf.data.Dataset: .batch(256))"
        )
    if array.dtype.kind == "O":
        return _of_objects(array, name, what)
    if array.dtype.kind in "US":
        return Column(Leaf(name, STRING, array.shape[1:]), array.astype(object))
    dtype = _stored(array.dtype, what)
    if declared is not None and None in declared and len(declared) == array.ndim - 1:
        return Column(Leaf(name, dtype, declared), list(array))
    return Column(Leaf(name, dtype, array.shape[1:]), array)


def _array(value: Any, what: str) -> np.ndarray:
    if hasattr(value, "dense_shape"):
        raise DatasetError(f"{what} is a sparse tensor; make it dense (tf.sparse.to_dense), or ragged")
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    elif hasattr(value, "numpy"):
        value = value.numpy()
    try:
        return np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty(len(value), object)
        array[:] = value
        return array


def _stored(dtype: np.dtype[Any], what: str) -> str:
    """The type in which numbers are kept: float64 becomes float32, as in `fit`."""
    name = {"float64": "float32", "bfloat16": "float32", "longdouble": "float32"}.get(dtype.name, dtype.name)
    if name not in DTYPES:
        kind = "dates and times" if dtype.kind in "mM" else f"values of type {dtype.name}"
        raise DatasetError(f"{what} has {kind}, which no model takes; make them numbers or strings (dates: .astype('int64') // 10**9)")
    return name


def _rows_of_ragged(value: Any, what: str) -> list[Any]:
    inner = value.values
    if hasattr(inner, "row_splits"):
        rows = value.to_list()
        try:
            return [np.asarray(row) for row in rows]
        except ValueError:
            raise DatasetError(f"{what} is ragged in more than one dimension of an example; pad all but the first") from None
    splits = np.asarray(value.row_splits).tolist()
    flat = _array(inner, what)
    return [flat[start:stop] for start, stop in itertools.pairwise(splits)]


def _of_objects(array: np.ndarray, name: str, what: str) -> Column:
    """A column of Python objects: strings, numbers, or an array for each example."""
    items = array.ravel()
    kinds = {type(item): number for number, item in reversed(list(enumerate(items)))}
    if all(issubclass(kind, str | bytes) for kind in kinds):
        return Column(Leaf(name, STRING, array.shape[1:]), array)
    if all(issubclass(kind, bool | int | float | np.number | np.bool_) for kind in kinds):
        numbers = np.array(items.tolist()).reshape(array.shape)
        if numbers.dtype.kind == "O":
            raise DatasetError(f"{what} has whole numbers of more than 64 bits; make them floats or strings")
        return Column(Leaf(name, _stored(numbers.dtype, what), numbers.shape[1:]), numbers)
    if array.ndim == 1 and all(issubclass(kind, list | tuple | np.ndarray) for kind in kinds):
        return _ragged(list(items), name, what)
    ordered = sorted(kinds, key=kinds.__getitem__)
    unlike = next((kind for kind in ordered if not _alike(kind, ordered[0])), ordered[0])
    first, other = (f"example {kinds[kind]} is {value_text(items[kinds[kind]])} ({kind.__name__})" for kind in (ordered[0], unlike))
    missing = any(_is_missing(items[kinds[kind]]) for kind in (ordered[0], unlike))
    fix = "fill in what is missing, as in frame.fillna('')" if missing else "all numbers, all strings, or an array for each example"
    raise DatasetError(f"{what} mixes types: {first}, {other}. Fix: {fix}")


def _is_missing(item: Any) -> bool:
    """Return whether an item is a missing value; pandas' own can't be compared."""
    return item is None or type(item).__name__ in ("NAType", "NaTType") or (isinstance(item, float) and item != item)  # noqa: PLR0124 - NaN


def _alike(kind: type, other: type) -> bool:
    groups: tuple[tuple[type, ...], ...] = ((str, bytes), (bool, int, float, np.number, np.bool_), (list, tuple, np.ndarray))
    return any(issubclass(kind, group) and issubclass(other, group) for group in groups)


def _ragged(rows: list[Any], name: str, what: str) -> Column:
    try:
        arrays = [np.asarray(row) for row in rows]
    except ValueError:
        raise DatasetError(f"{what}: an example is ragged in more than one dimension; pad all but the first") from None
    ranks = {array.ndim for array in arrays if array.size} or {array.ndim for array in arrays} or {1}
    if len(ranks) != 1 or ranks == {0}:
        raise DatasetError(f"{what}: its examples have {' and '.join(map(str, sorted(ranks)))} dimensions; they must have the same")
    rank = ranks.pop()
    filled = [array for array in arrays if array.size]
    types = {array.dtype for array in filled}
    strings = {dtype for dtype in types if dtype.kind in "USO"}
    if strings and (strings != types or not all(isinstance(item, str | bytes) for array in filled for item in array.ravel())):
        raise DatasetError(f"{what} mixes types: {', '.join(sorted(map(str, types)))}. Fix: all numbers, or all strings")
    dtype = STRING if strings else _stored(np.result_type(*types) if types else np.dtype(np.float32), what)
    shapes = [array.shape if array.ndim == rank else (0,) * rank for array in (filled or arrays)]
    inner = tuple(shapes[0][axis] if shapes and len({shape[axis] for shape in shapes}) == 1 else None for axis in range(1, rank))
    empty = np.zeros((0, *(side or 0 for side in inner)), object if strings else dtype)
    kept = [array if array.size else empty for array in arrays]
    return Column(Leaf(name, dtype, (None, *inner)), kept)


def _slices(columns: Sequence[Column], total: int) -> Iterator[tuple[int, int]]:
    """Where slices of at most `SLICE_BYTES` begin and end; a longer example is one of its own."""
    each = sum(column.examples.nbytes // max(1, total) for column in columns if not _differ(column))
    sizes = [_sizes(column.examples) for column in columns if _differ(column)]
    ends = np.cumsum(np.sum(sizes, axis=0) + each) if sizes else None
    start = 0
    while start < total:
        stop = start + SLICE_BYTES // max(1, each)
        if ends is not None:
            stop = int(np.searchsorted(ends, (ends[start - 1] if start else 0) + SLICE_BYTES, "right"))
        stop = min(total, max(stop, start + 1))
        yield start, stop
        start = stop


def _differ(column: Column) -> bool:
    """Return whether a column's examples differ in size."""
    return not isinstance(column.examples, np.ndarray) or column.examples.dtype.kind == "O"


def _sizes(examples: Any) -> np.ndarray:
    """Bytes `[n]` of strings, with their object's, or of arrays."""
    return np.fromiter(map(_size, examples), np.int64, len(examples))


def _size(example: Any) -> int:
    if isinstance(example, str | bytes):
        return OBJECT_BYTES + len(example)
    return int(example.nbytes) if example.dtype.kind != "O" else sum(map(_size, example.ravel()))


def _lengths(counts: dict[str, int]) -> str:
    (first, length), *others = counts.items()
    other, differing = next((name, count) for name, count in others if count != length)
    return f"{first} has {length:,} examples and {other} has {differing:,}"


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SHOWN} more columns" if len(texts) > SHOWN else ""
    return printable(", ".join(texts[:SHOWN]), 500) + more


def _loses_digits(numbers: np.ndarray, leaf: Leaf) -> bool:
    """Return whether some of the numbers are whole ones that only float64 holds."""
    if numbers.dtype != np.float64 or leaf.dtype != "float32":
        return False
    large = numbers[(np.abs(numbers) > EXACT) & (np.abs(numbers) < 2**53)]
    return bool(((large == np.rint(large)) & (large != large.astype(np.float32))).any())


def _first_upper(text: str) -> str:
    return text[0].upper() + text[1:]


def noted(called: str, caught: Iterable[WarningMessage]) -> list[str]:
    """Warnings of a user's function (`warnings.warn`), for the plan; libraries' other kinds of warnings are left out."""
    texts = [printable(str(one.message), 300) for one in caught if issubclass(one.category, UserWarning)]
    return [f"{called}: {text}" for text in dict.fromkeys(texts)][:SHOWN]


def value_text(value: Any) -> str:
    """A value for a message, in one short line."""
    shape = getattr(value, "shape", None)
    if shape is not None and tuple(shape):
        return f"an array {list(shape)} of {value.dtype}" if hasattr(value, "dtype") else f"a {type(value).__name__} {list(shape)}"
    return printable(repr(value), 60)
