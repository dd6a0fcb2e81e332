"""Rows of CSV files, in blocks that bound the memory whatever a file holds: a line without end, or a row of many columns."""

import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from control.datasets.listing.checked_examples import repeated
from trainer.common.errors import DatasetError
from trainer.common.safe_text import printable

ROWS = 16_384
"""Read at a time, if they are short."""
BLOCK_VALUES = 2**21
"""Values of a block: Python needs some 70 bytes for each."""
BLOCK_CHARACTERS = 2**26
"""Characters of a block; its last row may go beyond."""
LONGEST_ROW = 2**26
"""Characters: 4,096 columns, the most that a model takes, of 16,384 characters each."""
LONGEST_FIELD = 2**24
LONGEST_NAME = 1000
"""Characters of a column's name, which messages and plans have."""
DELIMITERS = ",;\t|"


class _Lines:
    """The lines of a file, of which no row's are read beyond the longest row."""

    def __init__(self, stream: TextIO, file: Path):
        self._stream, self._file = stream, file
        self._left, self._line, self._first = LONGEST_ROW, 0, 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        # Read without a limit, one line may be the whole file.
        line = self._stream.readline(self._left + 1)
        if len(line) > self._left:
            raise DatasetError(
                f"{self._file}, line {self._first:,}: a row of more than {LONGEST_ROW:,} characters, the most that is read. "
                "Fix: end each row with a line break, and close each quotation mark"
            )
        if not line:
            raise StopIteration
        self._left -= len(line)
        self._line += 1
        return line

    def next_row(self) -> int:
        """Begin another row; characters of the last one."""
        characters, self._left = LONGEST_ROW - self._left, LONGEST_ROW
        self._first = self._line + 1
        return characters


def _rows(file: Path) -> Iterator[tuple[int, int, list[str]]]:
    """The rows of a CSV file with the number of their last line and their characters; empty lines are left out."""
    csv.field_size_limit(LONGEST_FIELD)
    with file.open(encoding="utf-8-sig", newline="") as stream:
        try:
            header = stream.readline(LONGEST_ROW)
            delimiter = "\t" if file.suffix.lower() == ".tsv" else max(DELIMITERS, key=header.count)
            stream.seek(0)
            lines = _Lines(stream, file)
            # Not strict, a quotation mark too many would take all lines after it into one value.
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            for row in reader:
                characters = lines.next_row()
                if row:
                    yield reader.line_num, characters, row
        except UnicodeDecodeError as error:
            raise DatasetError(f"{file}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
        except csv.Error as error:
            raise DatasetError(f"{file}, line {reader.line_num}: {error}; fix or remove that row") from None


def header(file: Path) -> list[str]:
    """The names of a CSV file's columns; DatasetError if its first line does not name each once."""
    names = next((row for _, _, row in _rows(file)), [])
    if why := _wrong(names):
        raise DatasetError(f"{file}: its first line {why}; it must name each column once")
    return names


def _wrong(names: Sequence[str]) -> str:
    """Fault of a header, in words; empty if there is none."""
    if not names:
        return "is empty"
    if "" in names:
        return f"has no name for column {names.index('') + 1:,}"
    if long := next((number for number, name in enumerate(names, 1) if len(name) > LONGEST_NAME), None):
        return f"has a name of {len(names[long - 1]):,} characters for column {long:,}, at most {LONGEST_NAME:,} are read"
    twice = repeated(names)
    return "" if twice is None else f"has {printable(repr(twice), 60)} twice"


def blocks(file: Path, names: Sequence[str]) -> Iterator[tuple[int, dict[str, tuple[str, ...]]]]:
    """The values of each column, by name, of some rows after the header, and the number of the first of these rows, from 1."""
    most = max(1, min(ROWS, BLOCK_VALUES // len(names)))
    block: list[list[str]] = []
    first, left = 1, BLOCK_CHARACTERS
    for number, (line, characters, row) in enumerate(itertools.islice(_rows(file), 1, None), 1):
        if len(row) != len(names):
            shown = printable(",".join(row[:100]), 100)
            raise DatasetError(
                f"{file}: row {number:,} (line {line:,}) has {len(row):,} values, and the header names {len(names):,} columns. "
                f"Fix or remove it: {shown}"
            )
        block.append(row)
        left -= characters
        if len(block) == most or left <= 0:
            yield first, _by_name(names, block)
            block, first, left = [], number + 1, BLOCK_CHARACTERS
    if block:
        yield first, _by_name(names, block)


def _by_name(names: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return dict(zip(names, zip(*rows, strict=True), strict=True))
