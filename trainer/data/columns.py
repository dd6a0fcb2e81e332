"""Columns of any type on one node: random access to examples in memory-mapped files on its own disk.

The published files are NumPy's own format. Per split, `rows` has a record per example with all columns of fixed size, so an example is
read in one place; a column whose shape varies, or of strings, has files of its own.
docs/dependencies.md has measurements of other formats.

Write access to the shared folder must not be enough to change what is trained. So the manifest is checked against the digest from the
control node, and each file against the manifest's digest while it is copied to the node's own disk. Only the copy is mapped.
"""

import hashlib
import math
import mmap
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.common import limits
from trainer.common.errors import DatasetError
from trainer.data import local_copy
from trainer.data import manifest as manifests
from trainer.data.local_copy import Progress
from trainer.data.manifest import SPLITS, Manifest, Published
from trainer.data.spec import STRING, Leaf, Spec

BLOCK = 2**22
"""Bytes that are copied, or offsets that are checked, at a time."""
LONGEST_HEADER = 2**20
"""A record of thousands of columns has a long header."""
OTHER_FILES = 512
"""Open besides those of columns: connections, logs, libraries."""
MEMORY_FRACTION = 0.5
"""A file larger than this fraction of the memory is read without the kernel's read-ahead."""


def rows_name(split: str) -> str:
    """File of the columns of fixed size: a record `Spec.row_dtype` per example."""
    return f"{split}-rows.npy"


def part_name(split: str, number: int, part: str) -> str:
    """File of leaf `number`.

    `values`: its numbers, one example after the other. `starts` `[examples + 1]`: where each example's elements start. `shapes`
    `[examples, dimensions]`: if more than the first dimension varies. Strings have `text`, their UTF-8 bytes, and `ends`
    `[elements + 1]`: where each starts and the last one ends.
    """
    return f"{split}-{number:04d}-{part}.npy"


def file_names(spec: Spec) -> list[str]:
    """The files of a dataset with that spec, without its manifest."""
    names = []
    for split in SPLITS:
        names += [rows_name(split)] if spec.row_dtype().names else []
        names += [part_name(split, number, part) for number, leaf in enumerate(spec.leaves) for part in leaf.files]
    return names


def allow_open(count: int) -> None:
    """Let this process have `count` files of columns open: strings and sequences have files of their own.

    Raises:
        DatasetError: the system allows fewer.
    """
    allowed = limits.allow(resource.RLIMIT_NOFILE, count + OTHER_FILES)
    if allowed < count + OTHER_FILES:
        raise DatasetError(
            f"columns of strings or of varying length take {count:,} files, and this system lets a process have {allowed:,} open. "
            "Fix: raise that limit (ulimit -Hn as root, or nofile in /etc/security/limits.conf), or name fewer columns: data.features"
        )


class Columns:
    """The examples of one split."""

    def __init__(self, folder: Path, spec: Spec, split: str, count: int):
        """Map the files; DatasetError if one is not what the spec and the number of examples say."""
        self.spec, self._count = spec, count
        dtype = spec.row_dtype()
        self._rows = _map(folder / rows_name(split), dtype, count) if dtype.names else np.zeros(0, dtype)
        self._varied: dict[int, _Text | _Ragged] = {}
        self._places: dict[int, list[int]] = {number: [] for number in range(len(spec.leaves))}
        for place, (number, _) in enumerate(spec.varying):
            self._places[number].append(place)
        for number, leaf in enumerate(spec.leaves):
            if not leaf.fixed:
                files = {part: folder / part_name(split, number, part) for part in leaf.files}
                self._varied[number] = _Ragged(files, leaf, count) if leaf.varies else _Text(files, leaf, count)

    def __len__(self) -> int:
        """Number of examples."""
        return self._count

    def gather(self, indices: np.ndarray, sides: Sequence[int] | None = None) -> tuple[Any, ...]:
        """The examples at `indices`, in that order, as `spec.pack` nests them: a copy `[len(indices), ...]` of each leaf.

        Numbers keep their type; strings are arrays of objects, bytes in UTF-8. A dimension that varies is filled up with 0 or empty
        strings to the length in `sides`, in the order of `spec.varying`; by default that of the longest of these examples.
        Safe to call from several threads.
        """
        # take is several times faster than indexing for records.
        rows = self._rows.take(indices) if self._rows.dtype.names else None
        values: list[np.ndarray] = []
        for number, leaf in enumerate(self.spec.leaves):
            if number in self._varied:
                own = None if sides is None else [sides[place] for place in self._places[number]]
                values.append(self._varied[number].gather(indices, own))
            else:
                assert rows is not None
                values.append(np.ascontiguousarray(rows[str(number)], np.dtype(leaf.dtype)))
        return self.spec.pack(values)

    def longest(self, indices: np.ndarray) -> np.ndarray:
        """Lengths `[len(spec.varying)]` int32 that hold each of the examples at `indices`."""
        ragged = [varied.longest(indices) for varied in self._varied.values() if isinstance(varied, _Ragged)]
        return np.concatenate([*ragged, np.zeros(0)]).astype(np.int32)

    def fixed(self, number: int) -> np.ndarray:
        """All values `[len(self), ...]` of a leaf of fixed size, in the file."""
        column: np.ndarray = self._rows[str(number)]
        return column

    def lengths(self) -> np.ndarray | None:
        """Elements `[len(self)]` of each example in its columns that vary, the largest of them; None if no column varies."""
        ragged = [varied.lengths() for varied in self._varied.values() if isinstance(varied, _Ragged)]
        return np.max(ragged, axis=0) if ragged else None

    def check(self) -> None:
        """Refuse offsets that lead outside their files; reads all of them."""
        for varied in self._varied.values():
            varied.check()


class _Strings:
    """Strings, one after the other."""

    def __init__(self, files: dict[str, Path], elements: int | None):
        self._path = files["ends"]
        self._text = _map(files["text"], np.dtype("u1"))
        self._view = self._text.data
        self._ends = _map(files["ends"], np.dtype("<i8"), None if elements is None else elements + 1)

    def __len__(self) -> int:
        return max(0, len(self._ends) - 1)

    def at(self, elements: np.ndarray) -> np.ndarray:
        """Strings `[len(elements)]`, as bytes."""
        starts, ends = self._ends[elements].tolist(), self._ends[elements + 1].tolist()
        strings = np.empty(len(elements), object)
        strings[:] = [bytes(self._view[start:end]) for start, end in zip(starts, ends, strict=True)]
        return strings

    def take(self, first: int, last: int) -> np.ndarray:
        """Strings `[last - first]`."""
        return self.at(np.arange(first, last))

    def check(self) -> None:
        _check_offsets(self._path, self._ends, len(self._text))


class _Numbers:
    """Numbers, one after the other."""

    def __init__(self, files: dict[str, Path], dtype: np.dtype[Any]):
        self._values = _map(files["values"], dtype)

    def __len__(self) -> int:
        return len(self._values)

    def take(self, first: int, last: int) -> np.ndarray:
        """Numbers `[last - first]`."""
        return self._values[first:last]

    def check(self) -> None:
        """Any bytes are numbers."""


class _Text:
    """A column of strings, all examples of one shape."""

    def __init__(self, files: dict[str, Path], leaf: Leaf, count: int):
        self._shape = [side or 0 for side in leaf.shape]
        self._each = math.prod(self._shape)
        self._strings = _Strings(files, count * self._each)

    def gather(self, indices: np.ndarray, _: Sequence[int] | None = None) -> np.ndarray:
        elements = np.asarray(indices)[:, None] * self._each + np.arange(self._each)
        return self._strings.at(elements.ravel()).reshape(len(indices), *self._shape)

    def check(self) -> None:
        self._strings.check()


class _Ragged:
    """A column whose examples differ in shape."""

    def __init__(self, files: dict[str, Path], leaf: Leaf, count: int):
        self._leaf, self._path = leaf, files["starts"]
        self._elements = _Strings(files, None) if leaf.dtype == STRING else _Numbers(files, leaf.stored_dtype)
        self._starts = _map(files["starts"], np.dtype("<i8"), count + 1)
        self._shapes = _map(files["shapes"], np.dtype("<i8"), count, (len(leaf.shape),)) if "shapes" in files else None
        self._inner = [side or 0 for side in leaf.shape[1:]]

    def gather(self, indices: np.ndarray, sides: Sequence[int] | None = None) -> np.ndarray:
        shapes, varying = self._shapes_of(indices), iter(self.longest(indices) if sides is None else sides)
        padded = [int(next(varying)) if side is None else side for side in self._leaf.shape]
        string = self._leaf.dtype == STRING
        gathered = np.full((len(indices), *padded), b"", object) if string else np.zeros((len(indices), *padded), self._leaf.dtype)
        firsts, lasts = self._starts[indices].tolist(), self._starts[indices + 1].tolist()
        for place, (first, last, shape) in enumerate(zip(firsts, lasts, shapes.tolist(), strict=True)):
            gathered[place][tuple(map(slice, shape))] = self._elements.take(first, last).reshape(shape)
        return gathered

    def longest(self, indices: np.ndarray) -> np.ndarray:
        longest = self._shapes_of(indices).max(axis=0, initial=0)
        return longest[[axis for axis, side in enumerate(self._leaf.shape) if side is None]]

    def lengths(self) -> np.ndarray:
        return np.diff(self._starts)

    def _shapes_of(self, indices: np.ndarray) -> np.ndarray:
        if self._shapes is not None:
            return self._shapes[indices]
        lengths = (self._starts[indices + 1] - self._starts[indices]) // max(1, math.prod(self._inner))
        return np.column_stack([lengths, *(np.full(len(indices), side) for side in self._inner)])

    def check(self) -> None:
        self._elements.check()
        _check_offsets(self._path, self._starts, len(self._elements))
        for start in range(0, len(self._starts) - 1, BLOCK):
            indices = np.arange(start, min(start + BLOCK, len(self._starts) - 1))
            shapes, elements = self._shapes_of(indices), self._starts[indices + 1] - self._starts[indices]
            fits = (shapes >= 0).all() and (np.prod(shapes.astype(float), axis=1) == elements).all()
            if not fits or any((shapes[:, axis] != side).any() for axis, side in enumerate(self._leaf.shape) if side is not None):
                raise DatasetError(f"{self._path}: an example's shape does not fit {self._leaf}. {manifests.REMEDY}")


def open_columns(published: Published, caches: Path, progress: Progress) -> tuple[Manifest, dict[str, Columns]]:
    """The manifest of a published dataset of columns and its splits, from a checked copy in `caches`.

    `progress` gets the number of examples copied, in proportion to bytes, and their total. Processes on one host that share `caches`
    copy once: the others wait.

    Raises:
        DatasetError: images are published there, or a file is missing or differs from what was published.
    """
    manifest = manifests.load(published)
    if manifest.table is None:
        raise DatasetError(f"{published.folder}: images are published there, not columns")
    names = file_names(manifest.table.spec)
    if set(names) != set(manifest.sums):
        raise DatasetError(f"{published.folder / manifests.FILE}: its files are not those of its spec. {manifests.REMEDY}")
    folder = caches / f"{manifest.sha256[:16]}-columns"
    local_copy.once(folder, manifest.sha256, lambda part: _copy(manifest, published, part, progress))
    return manifest, _opened(manifest, folder)


def _opened(manifest: Manifest, folder: Path) -> dict[str, Columns]:
    assert manifest.table is not None
    allow_open(len(manifest.sums))
    return {split: Columns(folder, manifest.table.spec, split, manifest.count(split)) for split in SPLITS}


def _copy(manifest: Manifest, published: Published, part: Path, progress: Progress) -> None:
    paths = [published.folder / name for name in sorted(manifest.sums)]
    examples, done = sum(manifest.count(split) for split in SPLITS), 0
    try:
        total = sum(path.stat().st_size for path in paths) or 1
        for path in paths:
            with path.open("rb") as source, (part / path.name).open("wb") as target:
                digest = hashlib.sha256()
                while block := source.read(BLOCK):
                    digest.update(block)
                    target.write(block)
                    done += len(block)
                    progress(min(examples, examples * done // total), examples)
            manifests.check_digest(path, digest.hexdigest(), manifest.sums[path.name])
        for columns in _opened(manifest, part).values():
            columns.check()
    except FileNotFoundError as error:
        raise DatasetError(f"{error.filename}: can't be read: {error.strerror}. {manifests.REMEDY}") from None


def _map(path: Path, dtype: np.dtype[Any], count: int | None = None, inner: tuple[int, ...] = ()) -> np.ndarray:
    """A file's array `[count, *inner]`, mapped; DatasetError if it has another type or shape. `count` None: any."""
    try:
        array = np.lib.format.open_memmap(path, "r", max_header_size=LONGEST_HEADER)
    except ValueError as error:
        raise DatasetError(f"{path}: not an array in NumPy's format: {error}. {manifests.REMEDY}") from None
    expected = (*array.shape[:1], *inner) if count is None else (count, *inner)
    if array.dtype != dtype or array.shape != expected or array.ndim != 1 + len(inner):
        raise DatasetError(f"{path}: its array is not {list(expected)} of {dtype}. {manifests.REMEDY}")
    if path.stat().st_size > MEMORY_FRACTION * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        map_at_random(array)
    # A plain view: indexing np.memmap itself costs more.
    return array.view(np.ndarray)


def map_at_random(array: np.memmap[Any, Any]) -> None:
    """Have the kernel read only the pages that are touched.

    Its read-ahead fills the memory sooner, but where a file does not fit, it reads megabytes for each example, again and again.
    """
    mapped: mmap.mmap = array._mmap  # type: ignore[attr-defined]
    mapped.madvise(mmap.MADV_RANDOM)


def _check_offsets(path: Path, offsets: np.ndarray, end: int) -> None:
    """Refuse offsets that do not climb from 0 to `end`."""
    climbing = all((np.diff(offsets[start : start + BLOCK + 1]) >= 0).all() for start in range(0, len(offsets), BLOCK))
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end or not climbing:
        raise DatasetError(f"{path}: its offsets lead outside their file. {manifests.REMEDY}")
