"""Rows of Parquet files, read with bounded memory: a small file may hold any number of values, and of any length.

pyarrow is imported where a file is read: nothing else needs it.
"""

import itertools
import resource
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from control.datasets.listing.checked_examples import repeated
from control.datasets.sources.csv_rows import LONGEST_NAME, ROWS
from trainer.common import limits
from trainer.common.errors import DatasetError
from trainer.common.safe_text import printable

PARQUET = ".parquet"
INSTALL = "Fix: .venv/bin/python -m pip install pyarrow (only this machine needs it), or save the table as CSV"
BLOCK_BYTES = 2**26
"""Bytes of a block, by the size that the file states."""
MOST_MEMORY = 2**31
"""Bytes for a block, whatever the file says: blocks are 30 times smaller, unless a few rows are far larger than the mean."""
RATIO, FREE = 1000, 2**30
"""A table becomes at most `RATIO` times as large as its file, or `FREE` bytes: repeated names of 50 characters make it 300 times."""


def names(file: Path) -> list[str]:
    """The names of a file's columns; DatasetError if it is not Parquet, or can't be read without pyarrow."""
    return _names(_opened([file])[file])


def reader(files: Sequence[Path], wanted: Collection[str] | None) -> Callable[[Path], Iterator[tuple[int, dict[str, np.ndarray]]]]:
    """A function that reads a file's rows in blocks: the number of the first, from 1, and its columns, or those that are wanted.

    Whole numbers become floats if some are missing.

    Raises:
        DatasetError: a file is not Parquet or lacks a column, or a column's type is no number, string or list of those.
    """
    opened = _opened(files)
    kept = [name for name in _names(opened[files[0]]) if wanted is None or name in wanted]
    _check_schemas(opened, kept)
    nullable = {name for one in opened.values() for name in _with_missing(one, kept)}

    def tables(file: Path) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        size = file.stat().st_size
        first, most = 1, max(FREE, RATIO * size)
        left = most
        for columns in _blocks(file, opened[file], kept):
            table = {name: _values(columns[name], name in nullable, f"{file.name}: {name}") for name in kept}
            left -= sum(map(_bytes, table.values()))
            if left < 0:
                raise DatasetError(
                    f"{file}: its {size:,} bytes become more than {most:,}; at most {RATIO:,} times a file's size, or {FREE:,} bytes, are "
                    "read. Fix: save the table as CSV, or name the columns that are needed (-e set=data.features=[...])"
                )
            yield first, table
            first += len(next(iter(table.values())))

    return tables


def _opened(files: Sequence[Path]) -> dict[Path, Any]:
    """The files, whose strings are read as their different values and the numbers of those, as they are stored."""
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError:
        raise DatasetError(f"{files[0].name}: reading Parquet needs pyarrow. {INSTALL}") from None
    # Otherwise a group of rows is read at once, which may be the whole file.
    how = {"pre_buffer": False, "buffer_size": 2**20}
    try:
        schema = parquet.ParquetFile(files[0]).schema_arrow
        texts = [field.name for field in schema if types.is_string(field.type) or types.is_binary(field.type)]
        return {file: parquet.ParquetFile(file, read_dictionary=texts, **how) for file in files}
    except (OSError, ArrowException, MemoryError) as error:
        raise DatasetError(f"dataset={files[0].parent}: not Parquet: {printable(error, 200)}") from None


def _names(opened: Any) -> list[str]:
    return [str(name) for name in opened.schema_arrow.names]


def _check_schemas(opened: Mapping[Path, Any], kept: Sequence[str]) -> None:
    """Refuse Parquet files that lack a column of the first one, or have it twice, and a name that no message can hold."""
    if long := next((name for name in kept if len(name) > LONGEST_NAME), None):
        raise DatasetError(
            f"{next(iter(opened))}: it has a name of {len(long):,} characters for a column; at most {LONGEST_NAME:,} are read"
        )
    wanted = set(kept)
    for file, one in opened.items():
        have = _names(one)
        twice, missing = repeated(name for name in have if name in wanted), next(iter(wanted.difference(have)), None)
        if twice is not None or missing is not None:
            odd, how = (twice, "twice") if twice is not None else (missing, "not")
            raise DatasetError(f"{file}: it has the column {printable(odd, 60)} {how}; give all files the same columns, each once")


def _places(opened: Any, kept: Sequence[str]) -> dict[str, list[int]]:
    """Where the values of columns are: a list's values have a name below its own."""
    places: dict[str, list[int]] = {name: [] for name in kept}
    for number in range(opened.metadata.num_columns):
        path = opened.schema.column(number).path
        name = path if path in places else path.partition(".")[0]
        if name in places:
            places[name].append(number)
    return places


def _with_missing(opened: Any, kept: Sequence[str]) -> Iterator[str]:
    """Columns in which values are missing, by the file's statistics; without them, assume so."""
    metadata = opened.metadata
    for name, places in _places(opened, kept).items():
        plain = [place for place in places if opened.schema.column(place).path == name]
        for group, place in itertools.product(range(metadata.num_row_groups), plain):
            statistics = metadata.row_group(group).column(place).statistics
            if statistics is None or not statistics.has_null_count or statistics.null_count:
                yield name
                break


def _rows_of_block(opened: Any, kept: Sequence[str]) -> int:
    """How many rows of the largest ones make a block."""
    metadata, places = opened.metadata, [place for some in _places(opened, kept).values() for place in some]
    most = 1
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunks = [group.column(place) for place in places]
        size = sum(max(chunk.total_uncompressed_size, 8 * chunk.num_values) for chunk in chunks)
        most = max(most, size // max(1, group.num_rows))
    return max(1, min(ROWS, BLOCK_BYTES // most))


def _blocks(file: Path, opened: Any, kept: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The columns of some rows after the other, as pyarrow has them."""
    from pyarrow import ArrowException

    # Without threads, whose stacks would count as memory.
    batches = opened.iter_batches(_rows_of_block(opened, kept), columns=list(kept), use_threads=False)
    row = 1
    while True:
        try:
            # Beyond, this process has a MemoryError instead of being killed with all that it does.
            with limits.at_most(resource.RLIMIT_DATA, _data_bytes() + MOST_MEMORY):
                batch = next(batches, None)
        except MemoryError:
            raise DatasetError(
                f"{file}: its rows from {row:,} on need more than {MOST_MEMORY:,} bytes of memory at once, the most that is used. "
                "Fix: save the table as CSV, or with shorter pages (data_page_size) and shorter lists"
            ) from None
        except (OSError, ArrowException) as error:
            raise DatasetError(f"{file}: damaged after row {row - 1:,}: {printable(error, 200)}") from None
        if batch is None:
            return
        if batch.num_rows:
            yield {name: batch.column(name) for name in kept}
        row += batch.num_rows


def _data_bytes() -> int:
    """Memory of this process that RLIMIT_DATA counts."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


def _values(array: Any, missing: bool, what: str) -> np.ndarray:
    """A column `[n]`: numbers, strings or an array for each row."""
    from pyarrow import types

    kind = array.type
    if types.is_dictionary(kind):
        if types.is_string(kind.value_type) or types.is_binary(kind.value_type):
            return _texts(array)
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
    return np.asarray(values)


def _texts(array: Any) -> np.ndarray:
    """Strings `[n]`, of which equal ones are one object; None where one is missing."""
    different = np.array([*array.dictionary.to_pylist(), None], object)
    numbers = array.indices.fill_null(len(different) - 1) if array.indices.null_count else array.indices
    return np.asarray(different[numbers.to_numpy(zero_copy_only=False)])


def _bytes(values: np.ndarray) -> int:
    """Bytes of a column's values: of strings, their characters."""
    if values.dtype.kind != "O":
        return values.nbytes
    return sum(one.nbytes if isinstance(one, np.ndarray) else len(one) for one in values if one is not None and hasattr(one, "__len__"))
