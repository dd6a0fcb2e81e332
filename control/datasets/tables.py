"""Source `columns`: CSV and Parquet files, one column of which is the target.

A single file, or a folder: files or folders named `train*`, `test*` and, optionally, `val*`; or files of any name, which are one set.
Without test files, one row in five of the rest is held out for testing, drawn by its number.
"""

import csv
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from control.datasets import columns
from control.datasets.examples import Checked, check_columns, with_target
from control.datasets.sources import TABLES, Listing, fingerprint, source
from control.datasets.stratified import SPLIT_SEED
from trainer.config import nearest
from trainer.data.spec import STRING
from trainer.errors import DatasetError
from trainer.terminal import printable

PARQUET = ".parquet"
VALIDATION = ("validation", "valid", "val")
HELD_OUT = 5
"""Without files for testing, one row in this many is held out."""
LAYOUT = "a CSV or Parquet file, or a folder with train*, test* and, optionally, val* files of one of these kinds"
ROWS = 16_384
"""Read at a time."""
DELIMITERS = ",;\t|"
MISSING = frozenset({"", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None"})
"""In a column of numbers, these are NaN."""
TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
LONGEST_FIELD = 2**24
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
MEANT = 0.9
"""If at least this share of a target are numbers, the rest are mistakes, and it names no classes."""
INSTALL = "Fix: .venv/bin/python -m pip install pyarrow (only this machine needs it), or save the table as CSV"
Table = dict[str, Any]
"""Columns by name."""


@source("columns", LAYOUT, columns=True)
class Tables:
    """The rows of CSV or Parquet files."""

    def __init__(self, path: str, target: str | None, features: Sequence[str] | None):
        self.path = Path(path).expanduser().resolve()
        self._target, self._features = target, features

    def scan(self) -> Listing:
        """Convert the files once, and list the result."""
        files = self._files()
        called = f"dataset={self.path.name}"
        if self._target is None:
            names = _reader(files["train"][0])([files["train"][0]], None).names
            listed = printable(", ".join(names[:20]), 1000)
            raise DatasetError(
                f"{called}: data.target must name the column to predict. Fix: -e set=data.target={names[-1]}; there are: {listed}"
            )
        stamp = fingerprint(file for some in files.values() for file in some)
        folder = columns.kept_at("tables", stamp, self._target, self._features)
        if not columns.is_kept(folder):
            checked = Checked(called)
            columns.keep(folder, checked, self._batches(files, checked))
        note = "" if "test" in files else f"there are no files for testing, so 1 row in {HELD_OUT} is held out, drawn by its number"
        digest = hashlib.sha256("\0".join(map(str, (stamp, self._target, self._features))).encode()).hexdigest()
        return columns.listing(folder, self.path.stem, digest, note)

    def read(self, split: str, index: int) -> bytes:
        """Columns have no records."""
        raise NotImplementedError

    def _files(self) -> dict[str, list[Path]]:
        """The files of each split there is."""
        if self.path.is_file():
            return {"train": [self.path]}
        places = sorted(entry for entry in self.path.iterdir() if not entry.name.startswith("."))
        prefixes = {"train": ("train",), "validation": VALIDATION, "test": ("test",)}
        files: dict[str, list[Path]] = {}
        for split, prefix in prefixes.items():
            chosen = [place for place in places if place.name.lower().startswith(prefix)]
            inside = [file for place in chosen for file in (sorted(place.iterdir()) if place.is_dir() else [place])]
            if tables := [file for file in inside if file.is_file() and file.suffix.lower() in TABLES]:
                files[split] = tables
        if "train" not in files:
            files = {"train": [place for place in places if place.is_file() and place.suffix.lower() in TABLES]}
        kinds = {file.suffix.lower() for some in files.values() for file in some}
        if len(kinds) != 1:
            raise DatasetError(f"dataset={self.path}: {' and '.join(sorted(kinds)) or 'no tables'} in it; give {LAYOUT}")
        return files

    def _batches(self, files: dict[str, list[Path]], checked: Checked) -> Iterator[columns.Batch]:
        called = checked.called
        every = [file for some in files.values() for file in some]
        wanted = None if self._features is None else [*self._features, *([self._target] if self._target else [])]
        read = _reader(every[0])(every, wanted)
        check_columns(read.names, self._target, self._features, called)
        texts = texts_of(every, read.texts, self._target) if read.texts else {}
        if self._target is not None and self._target in texts:
            check_numbers(texts.pop(self._target), self._target, called)
        checked.nearly_numbers += [f"{name}: {one.described}" for name, one in texts.items() if one.nearly_numbers]
        draws = np.random.Generator(np.random.Philox(key=[SPLIT_SEED, 2]))
        for split in ("train", "validation", "test"):
            for file in files.get(split, []):
                for first, table in read.tables(file):
                    where = f"rows {first:,} onwards of {file.name}"
                    if split == "train" and "test" not in files:
                        drawn = draws.random(len(next(iter(table.values())))) * HELD_OUT < 1
                        yield from self._divided(table, drawn, where, called)
                    else:
                        yield split, where, with_target(table, self._target, self._features, called)

    def _divided(self, table: Table, drawn: np.ndarray, where: str, called: str) -> Iterator[columns.Batch]:
        for split, chosen in (("train", ~drawn), ("test", drawn)):
            if chosen.any():
                rows = {name: values[chosen] for name, values in table.items()}
                yield split, where, with_target(rows, self._target, self._features, called)


@dataclass
class Read:
    """Names of the columns, and a function that reads a file's rows: the number of the first, from 1, and its columns."""

    names: list[str]
    tables: Callable[[Path], Iterator[tuple[int, Table]]]
    texts: Sequence[str] = ()
    """Columns of CSV files whose values are strings."""


def _reader(file: Path) -> Callable[[Sequence[Path], Sequence[str] | None], Read]:
    return of_parquet if file.suffix.lower() == PARQUET else of_text


def of_text(files: Sequence[Path], wanted: Sequence[str] | None) -> Read:
    """Rows of CSV files; the type of a column is one that all its values have.

    Raises:
        DatasetError: a row with more or fewer values than the header, another header than the first file's, no UTF-8.
    """
    names = _header(files[0])
    kinds = {name: _Kind() for name in names if wanted is None or name in wanted}
    for file in files:
        if _header(file) != names:
            raise DatasetError(f"{file}: its header differs from that of {files[0].name}; give all files the same columns")
        for _, table in _text_blocks(file, names):
            for name, kind in kinds.items():
                kind.see(table[name])

    def tables(file: Path) -> Iterator[tuple[int, Table]]:
        for first, table in _text_blocks(file, names):
            yield first, {name: kind.converted(table[name]) for name, kind in kinds.items()}

    return Read(names, tables, [name for name, kind in kinds.items() if kind.dtype is str])


@dataclass
class Texts:
    """What a column of strings has."""

    kind: "_Kind"
    first: str = ""
    """The first value that is no number, its row and file."""
    empty: str = ""
    """Row and file of the first that is empty."""
    numbers: int = 0
    total: int = 0
    """Values; `NA` counts as none."""
    commas: int = 0
    """Numbers with a decimal comma."""

    def see(self, row: int, text: str, file: Path) -> None:
        """Count a value."""
        if not text.strip():
            self.empty = self.empty or f"row {row:,} of {file.name}"
        if text in MISSING:
            return
        self.total += 1
        if self.kind.of([text]) in (int, float):
            self.numbers += 1
            return
        self.commas += bool(DECIMAL_COMMA.fullmatch(text))
        self.first = self.first or f"{printable(repr(text), 60)} in row {row:,} of {file.name}"

    @property
    def described(self) -> str:
        """The first value that is no number, and how many are."""
        return f"{self.first} is no number, and {self.numbers:,} of {self.total:,} values are"

    @property
    def nearly_numbers(self) -> bool:
        """Whether these are numbers but for a few."""
        return bool(self.first) and self.numbers >= MEANT * self.total


def texts_of(files: Sequence[Path], names: Sequence[str], target: str | None) -> dict[str, Texts]:
    """What columns of strings of CSV files have; but for the target, of those that are clearly no numbers, what their first rows have."""
    found, counted = {name: Texts(_Kind()) for name in names}, list(names)
    for file in files:
        for row, table in _text_blocks(file, _header(file)):
            for name in counted:
                for number, text in enumerate(table.get(name, ()), row):
                    found[name].see(number, text, file)
            counted = [name for name in counted if name == target or found[name].nearly_numbers or found[name].numbers == found[name].total]
        if not counted:
            break
    return found


def check_numbers(texts: Texts, name: str, called: str) -> None:
    """Refuse strings of a target that are numbers but for a few, which make names of all, and empty ones.

    Raises:
        DatasetError: the first value that is no number, or none, its row and file.
    """
    target = f"{called}: data.target={name}"
    if texts.empty:
        raise DatasetError(f"{target}: {texts.empty} has no value, which would be a class of its own. Fix: fill it in, or remove that row")
    if texts.commas and texts.numbers + texts.commas == texts.total:
        raise DatasetError(f"{target}: {texts.first} has a decimal comma, and would name a class. Fix: a decimal point")
    if texts.nearly_numbers:
        raise DatasetError(f"{target}: {texts.described}; with it each value would name a class. Fix: correct or remove that row")


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file with the number of their last line; empty lines are left out."""
    csv.field_size_limit(LONGEST_FIELD)
    with file.open(encoding="utf-8-sig", newline="") as stream:
        try:
            header = stream.readline()
            delimiter = "\t" if file.suffix.lower() == ".tsv" else max(DELIMITERS, key=header.count)
            stream.seek(0)
            # Not strict, a quotation mark too many would take all lines after it into one value.
            reader = csv.reader(stream, delimiter=delimiter, strict=True)
            yield from ((reader.line_num, row) for row in reader if row)
        except UnicodeDecodeError as error:
            raise DatasetError(f"{file}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
        except csv.Error as error:
            raise DatasetError(f"{file}, line {reader.line_num}: {error}; fix or remove that row") from None


def _header(file: Path) -> list[str]:
    names = next((row for _, row in _lines(file)), [])
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if not names or twice or "" in names:
        why = "is empty" if not names else f"has {twice[0]!r} twice" if twice else f"has no name for column {names.index('') + 1}"
        raise DatasetError(f"{file}: its first line {why}; it must name each column once")
    return names


def _text_blocks(file: Path, names: Sequence[str]) -> Iterator[tuple[int, dict[str, tuple[str, ...]]]]:
    rows = enumerate(itertools.islice(_lines(file), 1, None), 1)
    while block := list(itertools.islice(rows, ROWS)):
        for number, (line, row) in block:
            if len(row) != len(names):
                raise DatasetError(
                    f"{file}: row {number:,} (line {line:,}) has {len(row)} values, and the header names {len(names)} columns. "
                    f"Fix or remove it: {printable(','.join(row), 100)}"
                )
        yield block[0][0], dict(zip(names, zip(*(row for _, (_, row) in block), strict=True), strict=True))


def rows(path: Path, types: Mapping[str, str], called: str) -> Iterator[tuple[str, Table]]:
    """The rows of a file, or of a folder's files by name, each block with its name in messages: columns of given types, others left out.

    Raises:
        DatasetError: there is no file, a column is missing, a value is of another type.
    """
    files = [path] if path.is_file() else sorted(entry for entry in path.iterdir() if entry.suffix.lower() in TABLES)
    if not files:
        raise DatasetError(f"{called}: there is no CSV or Parquet file in it")
    for file in files:
        parquet = of_parquet([file], list(types)) if file.suffix.lower() == PARQUET else None
        names = parquet.names if parquet else _header(file)
        for name in types:
            if name not in names:
                listed = printable(", ".join(names[:20]) + (", ..." if len(names) > 20 else ""), 1000)
                raise DatasetError(
                    f"{called}: {file.name} has no column {name}, which the model takes{nearest(name, names)}; it has: {listed}"
                )
        for first, table in parquet.tables(file) if parquet else _text_blocks(file, names):
            where = f"rows {first:,} onwards of {file.name}"
            # A column of Parquet files has a type of its own.
            yield where, {name: table[name] if parquet else _typed(table[name], types[name], f"{called}: {name}", first) for name in types}


def _typed(texts: Sequence[str], dtype: str, what: str, first: int) -> np.ndarray:
    """An array `[n]` of the texts of a column, which begin with row `first`."""
    if dtype == STRING:
        strings = np.empty(len(texts), object)
        strings[:] = texts
        return strings
    convert = _CONVERTERS[np.dtype(dtype).kind]
    try:
        return np.array([convert(text) for text in texts], dtype)
    except (KeyError, ValueError, OverflowError):
        row, text = next((row, text) for row, text in enumerate(texts, first) if not _is_one(text, convert, dtype))
        shown = "empty" if text in MISSING else printable(repr(text), 60)
        raise DatasetError(f"{what} of row {row:,} is {shown}, and {dtype} in training. Fix or remove that row") from None


_CONVERTERS: dict[str, Callable[[str], Any]] = {
    "b": TRUTH.__getitem__,
    **dict.fromkeys("iu", int),
    "f": lambda text: float("nan" if text in MISSING else text),
}
"""From a text to a value, by NumPy's kind of type."""


def _is_one(text: str, convert: Callable[[str], Any], dtype: str) -> bool:
    try:
        np.array([convert(text)], dtype)
    except (KeyError, ValueError, OverflowError):
        return False
    return True


class _Kind:
    """The type that all values of a column have: truth values, whole numbers, numbers, else strings."""

    def __init__(self) -> None:
        self._kinds: set[type] = set()
        self._missing = False
        self._largest = 0

    def see(self, texts: Sequence[str]) -> None:
        """Take more values into account."""
        if str in self._kinds:
            return
        values = texts if MISSING.isdisjoint(texts) else [text for text in texts if text not in MISSING]
        self._missing = self._missing or len(values) < len(texts)
        if values:
            self._kinds.add(self.of(values))

    def of(self, values: Sequence[str]) -> type:
        """That of some values, none of which is missing."""
        if all(value in TRUTH for value in values):
            return bool
        # Python reads 1_000 as a number; in a table it is a name.
        if "_" in "".join(values):
            return str
        try:
            numbers = list(map(int, values))
        except ValueError:
            return float if _are_floats(values) else str
        self._largest = max([self._largest, *map(abs, numbers)])
        return int

    @property
    def dtype(self) -> type:
        """That of all values seen."""
        if self._kinds == {bool} and not self._missing:
            return bool
        exact = self._largest < 2**63 or float in self._kinds
        if not exact or not self._kinds <= {int, float}:
            return str
        return int if self._kinds == {int} and not self._missing else float

    def converted(self, texts: Sequence[str]) -> np.ndarray:
        """An array `[n]` of values; missing numbers are NaN."""
        if self.dtype is bool:
            return np.array([TRUTH[text] for text in texts])
        if self.dtype is int:
            return np.array(list(map(int, texts)), np.int64)
        if self.dtype is float:
            return np.array([float("nan" if text in MISSING else text) for text in texts] if self._missing else list(map(float, texts)))
        strings = np.empty(len(texts), object)
        strings[:] = texts
        return strings


def _are_floats(values: Sequence[str]) -> bool:
    try:
        for value in values:
            float(value)
    except ValueError:
        return False
    return True


def of_parquet(files: Sequence[Path], wanted: Sequence[str] | None) -> Read:
    """Rows of Parquet files; whole numbers become floats if some are missing.

    Raises:
        DatasetError: pyarrow is not installed, a file is none, a column of a type that is no number, string or list of those.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DatasetError(f"{files[0].name}: reading Parquet needs pyarrow. {INSTALL}") from None
    try:
        opened = {file: parquet.ParquetFile(file) for file in files}
        names = [str(name) for name in opened[files[0]].schema_arrow.names]
        kept = [name for name in names if wanted is None or name in wanted]
        _check_schemas(opened, kept)
        nullable = {name for one in opened.values() for name in kept if _has_missing(one, name)}
    except (OSError, ArrowException) as error:
        raise DatasetError(f"dataset={files[0].parent}: not Parquet: {printable(error, 200)}") from None

    def tables(file: Path) -> Iterator[tuple[int, Table]]:
        first = 1
        for batch in opened[file].iter_batches(ROWS, columns=kept):
            yield first, {name: _of_arrow(batch.column(name), name in nullable, f"{file.name}: {name}") for name in kept}
            first += batch.num_rows

    return Read(names, tables)


def _check_schemas(opened: Mapping[Path, Any], kept: Sequence[str]) -> None:
    """Refuse Parquet files that lack a column of the first one, or have it twice."""
    for file, one in opened.items():
        names = list(one.schema_arrow.names)
        if odd := [name for name in kept if names.count(name) != 1]:
            how = "twice" if odd[0] in names else "not"
            raise DatasetError(f"{file}: it has the column {printable(odd[0], 60)} {how}; give all files the same columns, each once")


def _has_missing(file: Any, name: str) -> bool:
    """Whether values are missing in a column, by the file's statistics; without them, assume so."""
    metadata, schema = file.metadata, file.schema
    places = [number for number in range(metadata.num_columns) if schema.column(number).path == name]
    for group, place in itertools.product(range(metadata.num_row_groups), places):
        statistics = metadata.row_group(group).column(place).statistics
        if statistics is None or not statistics.has_null_count or statistics.null_count:
            return True
    return False


def _of_arrow(array: Any, missing: bool, what: str) -> np.ndarray:
    """A column `[n]`: numbers, strings or an array for each row."""
    from pyarrow import types

    kind = array.type
    if types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if types.is_struct(kind) or types.is_map(kind):
        raise DatasetError(f"{what} has the type {kind}; make it several columns")
    if types.is_fixed_size_list(kind) and not array.null_count:
        return np.asarray(array.flatten().to_numpy(zero_copy_only=False)).reshape(len(array), kind.list_size)
    if types.is_decimal(kind) or (types.is_integer(kind) and missing):
        # What float64 rounds is refused otherwise, as a whole number without a missing one beside it is not.
        array = array.cast("float64", safe=False)
    values = array.to_numpy(zero_copy_only=False)
    if types.is_list(kind) or types.is_large_list(kind):
        rows = np.empty(len(values), object)
        rows[:] = list(values)
        return rows
    return values
