"""Source `columns`: CSV and Parquet files, one column of which is the target.

A single file, or a folder: files or folders named `train*`, `test*` and, optionally, `val*`; or files of any name, which are one set.
Without test files, `data.test_split` of the rows of `train` are held out for testing, drawn by their numbers.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from control.datasets.listing.checked_examples import ColumnChoice, ExampleChecker, listed
from control.datasets.listing.kept_columns import Batch, ColumnFolder
from control.datasets.listing.registry import TABLES, Listing, fingerprint, source
from control.datasets.listing.stratified import SPLIT_SEED
from control.datasets.sources import csv_rows, parquet_rows
from control.datasets.sources.parquet_rows import PARQUET
from trainer.common.errors import DatasetError
from trainer.common.safe_text import printable
from trainer.common.suggest import nearest
from trainer.config.schema import Data
from trainer.data.spec import STRING

VALIDATION = ("validation", "valid", "val")
LAYOUT = "a CSV or Parquet file, or a folder with train*, test* and, optionally, val* files of one of these kinds"
MISSING = frozenset({"", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None"})
"""In a column of numbers, these are NaN."""
TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
MEANT = 0.9
"""If at least this share of a target are numbers, the rest are mistakes, and it names no classes."""
Table = dict[str, Any]
"""Columns by name."""


@source("columns", LAYOUT, takes=("target", "features", "test_split"))
class Tables:
    """The rows of CSV or Parquet files."""

    def __init__(self, path: str, target: str | None, features: Sequence[str] | None, test_split: float = Data.test_split):
        self.path, self._test_split = Path(path).expanduser().resolve(), test_split
        self._choice = ColumnChoice(target, features, f"dataset={self.path.name}")

    def scan(self) -> Listing:
        """Convert the files once, and list the result."""
        files, choice = self._files(), self._choice
        if choice.target is None:
            names = _names(files["train"][0])
            how = f"Fix: -e set=data.target={names[-1]}; there are: {listed(names)}"
            raise DatasetError(f"{choice.called}: data.target must name the column to predict. {how}")
        stamp = fingerprint(file for some in files.values() for file in some)
        share = None if "test" in files else self._test_split
        identity = (stamp, choice.target, choice.features, share)
        folder = ColumnFolder.of("tables", *identity)
        if not folder.exists:
            checked = ExampleChecker(choice.called)
            folder.write(checked, self._batches(files, choice.target, checked))
        digest = hashlib.sha256("\0".join(map(str, identity)).encode()).hexdigest()
        if share is None:
            return folder.listing(self.path.stem, digest)
        note = f"there are no files for testing, so data.test_split={share:g} of the rows is held out, drawn by their numbers"
        return dataclasses.replace(folder.listing(self.path.stem, digest, note), draws_test=True)

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

    def _batches(self, files: dict[str, list[Path]], target: str, checked: ExampleChecker) -> Iterator[Batch]:
        choice, every = self._choice, [file for some in files.values() for file in some]
        # Before all files are read.
        choice.check(_names(every[0]))
        wanted = None if choice.features is None else {*choice.features, target}
        if _is_parquet(every[0]):
            tables = parquet_rows.reader(every, wanted)
        else:
            tables, strings = _of_text(every, wanted)
            texts = _texts_of(every, strings, target)
            if target in texts:
                _check_numbers(texts.pop(target), target, choice.called)
            checked.nearly_numbers += [f"{name}: {one.described}" for name, one in texts.items() if one.nearly_numbers]
        draws, held, rows = np.random.Generator(np.random.Philox(key=[SPLIT_SEED, 2])), 0, 0
        for split in ("train", "validation", "test"):
            for file in files.get(split, []):
                for first, table in tables(file):
                    where = f"rows {first:,} onwards of {file.name}"
                    if split != "train" or "test" in files:
                        yield split, where, choice.divided(table)
                        continue
                    drawn = draws.random(len(next(iter(table.values())))) < self._test_split
                    held, rows = held + int(drawn.sum()), rows + len(drawn)
                    for part, chosen in (("train", ~drawn), ("test", drawn)):
                        if chosen.any():
                            yield part, where, choice.divided({name: values[chosen] for name, values in table.items()})
        if rows and held in (0, rows):
            how = f"draws {'all' if held else 'none'} of its {rows:,} rows for testing; at least one must be drawn, and one be left"
            raise DatasetError(
                f"{choice.called}: data.test_split={self._test_split:g} {how}. Fix: another share, as in -e set=data.test_split=0.5, more "
                "rows, or a folder with train.csv and test.csv"
            )


TableReader = Callable[[Path], Iterator[tuple[int, Table]]]
"""Reads a file's rows in blocks: the number of the first, from 1, and its columns."""


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == PARQUET


def _names(file: Path) -> list[str]:
    """The names of a file's columns."""
    return parquet_rows.names(file) if _is_parquet(file) else csv_rows.header(file)


def _of_text(files: Sequence[Path], wanted: Collection[str] | None) -> tuple[TableReader, list[str]]:
    """A reader of CSV files, in which the type of a column is one that all its values have; the columns of strings.

    Raises:
        DatasetError: a row with more or fewer values than the header, another header than the first file's, no UTF-8.
    """
    names = csv_rows.header(files[0])
    kinds = {name: _Kind() for name in names if wanted is None or name in wanted}
    for file in files:
        if csv_rows.header(file) != names:
            raise DatasetError(f"{file}: its header differs from that of {files[0].name}; give all files the same columns")
        for _, table in csv_rows.blocks(file, names):
            for name, kind in kinds.items():
                kind.see(table[name])

    def tables(file: Path) -> Iterator[tuple[int, Table]]:
        for first, table in csv_rows.blocks(file, names):
            yield first, {name: kind.converted(table[name]) for name, kind in kinds.items()}

    return tables, [name for name, kind in kinds.items() if kind.dtype is str]


@dataclass
class _Texts:
    """Findings in a column of strings."""

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
        """True if nearly all values are numbers, but not all."""
        return bool(self.first) and self.numbers >= MEANT * self.total


def _texts_of(files: Sequence[Path], names: Sequence[str], target: str | None) -> dict[str, _Texts]:
    """Findings in CSV files' columns of strings; of columns that are clearly no numbers, except the target, in their first rows only."""
    found, counted = {name: _Texts(_Kind()) for name in names}, list(names)
    for file in files:
        for row, table in csv_rows.blocks(file, csv_rows.header(file)):
            for name in counted:
                for number, text in enumerate(table.get(name, ()), row):
                    found[name].see(number, text, file)
            counted = [name for name in counted if name == target or found[name].nearly_numbers or found[name].numbers == found[name].total]
        if not counted:
            break
    return found


def _check_numbers(texts: _Texts, name: str, called: str) -> None:
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


def rows(path: Path, types: Mapping[str, str], called: str) -> Iterator[tuple[str, Table]]:
    """The rows of a file, or of a folder's files by name, each block with its name in messages: columns of given types, others left out.

    Raises:
        DatasetError: there is no file, a column is missing, a value is of another type.
    """
    files = [path] if path.is_file() else sorted(entry for entry in path.iterdir() if entry.suffix.lower() in TABLES)
    if not files:
        raise DatasetError(f"{called}: there is no CSV or Parquet file in it")
    for file in files:
        names = _names(file)
        known = set(names)
        for name in types:
            if name not in known:
                why = f"has no column {name}, which the model takes{nearest(name, names)}; it has: {listed(names)}"
                raise DatasetError(f"{called}: {file.name} {why}")
        if _is_parquet(file):
            # Its columns have types of their own.
            blocks = parquet_rows.reader([file], types)(file)
        else:
            blocks = (
                (first, {name: _typed(table[name], dtype, f"{called}: {name}", first) for name, dtype in types.items()})
                for first, table in csv_rows.blocks(file, names)
            )
        yield from ((f"rows {first:,} onwards of {file.name}", {name: table[name] for name in types}) for first, table in blocks)


def _typed(texts: Sequence[str], dtype: str, what: str, first: int) -> np.ndarray:
    """An array `[n]` of the texts of a column, which begin with row `first`."""
    if dtype == STRING:
        return _strings(texts)
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
        return _strings(texts)


def _strings(texts: Sequence[str]) -> np.ndarray:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


def _are_floats(values: Sequence[str]) -> bool:
    try:
        for value in values:
            float(value)
    except ValueError:
        return False
    return True
