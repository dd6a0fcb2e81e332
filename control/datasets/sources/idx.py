"""Source `idx`: the four files of MNIST's format (LeCun, Cortes, Burges), plain or gzipped."""

import contextlib
import gzip
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from control.datasets.listing.registry import Listing, class_names, fingerprint, folder_of, source
from trainer.common.errors import DatasetError

STEMS = {"train": "train", "test": "t10k"}
WANTED = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (each plain or .gz)"


MOST_DIMENSIONS, LARGEST = 3, 8 * 2**30
"""Limits of a file's array, dimensions and bytes, as a packed file may expand to any size."""
RATIO, FREE = 100, 2**28
"""A packed file becomes at most `RATIO` times as large, or `FREE` bytes: MNIST's images become five times as large, zeros 1,000 times."""
BLOCK = 2**24
"""Bytes that are read at a time."""
HEADER = 4 + 4 * MOST_DIMENSIONS


def _parse(data: bytes | bytearray, name: str) -> np.ndarray:
    """An idx file's bytes as a uint8 array of the shape in its header; DatasetError if they are anything else."""
    start, shape = _header(bytes(data[:HEADER]), name)
    _check_length(len(data), start, shape, name)
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _check_length(length: int, start: int, shape: tuple[int, ...], name: str) -> None:
    expected = math.prod(shape)
    if length - start != expected:
        more = "more than that" if length - start > expected else f"{length - start:,}"
        raise DatasetError(f"{name}: truncated or damaged: {expected:,} bytes by its header, {more} in it")


def _header(data: bytes, name: str) -> tuple[int, tuple[int, ...]]:
    """Where the array begins, and its shape."""
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != 8 or not 1 <= data[3] <= MOST_DIMENSIONS:
        raise DatasetError(f"{name}: not an idx file of unsigned bytes in 1 to {MOST_DIMENSIONS} dimensions (magic {data[:4].hex()})")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise DatasetError(f"{name}: truncated: the file ends inside its header")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if (size := math.prod(shape)) > LARGEST:
        raise DatasetError(f"{name}: {size:,} bytes by its header; at most {LARGEST:,} are read")
    return start, shape


@source("idx", f"a folder with {WANTED}")
class Idx:
    """MNIST-format files in one folder."""

    def __init__(self, path: str, name: str | None = None, classes: Sequence[str] = ()):
        self.path = folder_of(path)
        self._name, self._classes = name or self.path.name, classes
        self._images: dict[str, np.ndarray] = {}

    def scan(self) -> Listing:
        """List the records: labels are read, and of the images, which take longer, only how many there are."""
        files, labels, shapes = [], {}, dict[str, tuple[int, ...]]()
        for split, stem in STEMS.items():
            pair = [self._find(stem, kind) for kind in ("images-idx3", "labels-idx1")]
            files += pair
            shapes[split], numbers = _shape(pair[0]), _read(pair[1])
            self._check(split, shapes, numbers)
            labels[split] = numbers.tolist()
        classes = class_names(f"dataset {self.path}", labels, self._classes)
        return listing(self._name, classes, labels, fingerprint(files), (*shapes["train"][1:], 1))

    def read(self, split: str, index: int) -> bytes:
        """Raw pixels of one image, row by row; DatasetError if the images' file is damaged."""
        if split not in self._images:
            self._images[split] = _read(self._find(STEMS[split], "images-idx3"))
        return self._images[split][index].tobytes()

    def _find(self, stem: str, kind: str) -> Path:
        for separator in ("-", "."):
            for ending in ("", ".gz"):
                file = self.path / f"{stem}-{kind.replace('-', separator)}-ubyte{ending}"
                if file.is_file():
                    return file
        raise DatasetError(f"dataset {self.path}: {stem}-{kind}-ubyte is missing; the source `idx` needs {WANTED}")

    def _check(self, split: str, shapes: Mapping[str, tuple[int, ...]], labels: np.ndarray) -> None:
        images, first = shapes[split], shapes["train"]
        if len(images) != 3 or labels.ndim != 1:
            raise DatasetError(
                f"dataset {self.path}: {split}: images need 3 dimensions and labels 1, found {len(images)} and {labels.ndim}"
            )
        if images[0] != len(labels) or not images[0]:
            raise DatasetError(f"dataset {self.path}: {split}: {images[0]} images but {len(labels)} labels")
        if first[1:] != images[1:]:
            raise DatasetError(f"dataset {self.path}: train images are {first[1:]}, test images {images[1:]}; they must agree")


def listing(name: str, classes: list[str], labels: dict[str, list[int]], stamp: str, shape: tuple[int, ...]) -> Listing:
    """The listing of images that are numbered within their split."""
    files = {split: [f"{split}/{index:05d}" for index in range(len(numbers))] for split, numbers in labels.items()}
    return Listing(name, classes, files, labels, stamp, shape)


def _shape(file: Path) -> tuple[int, ...]:
    """The shape of a file's array by its header, which the size of a file that is not packed must agree with."""
    with _opened(file) as stream:
        start, shape = _header(stream.read(HEADER), str(file))
    expected = start + math.prod(shape)
    _check_size(file, expected)
    if file.suffix != ".gz":
        _check_length(file.stat().st_size, start, shape, str(file))
    return shape


def _read(file: Path) -> np.ndarray:
    """A file's array, of which at most one byte more is unpacked than its header says: a small packed file may hold any number."""
    with _opened(file) as stream:
        data = bytearray(stream.read(HEADER))
        start, shape = _header(bytes(data), str(file))
        expected = start + math.prod(shape)
        _check_size(file, expected)
        while len(data) <= expected and (block := stream.read(min(BLOCK, expected + 1 - len(data)))):
            data += block
    return _parse(data, str(file))


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[gzip.GzipFile | IO[bytes]]:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            yield stream
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{file}: can't be read: {error}") from None


def _check_size(file: Path, expected: int) -> None:
    """Refuse a header that claims far more than its packed file can be meant to hold, before it is unpacked."""
    packed = file.stat().st_size
    if file.suffix == ".gz" and expected > max(FREE, RATIO * packed):
        raise DatasetError(
            f"{file}: {packed:,} bytes that become {expected:,} by its header; at most {RATIO} times as many, or {FREE:,}, are unpacked. "
            "Fix, if it is what you expect: gunzip it"
        )
