"""Source `idx`: the four files of MNIST's format (LeCun, Cortes, Burges), plain or gzipped."""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

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
    expected = math.prod(shape)
    if len(data) - start != expected:
        more = "more than that" if len(data) - start > expected else f"{len(data) - start:,}"
        raise DatasetError(f"{name}: truncated or damaged: {expected:,} bytes by its header, {more} in it")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


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
        """Read the files and list their records."""
        files, labels = [], {}
        for split, stem in STEMS.items():
            pair = [self._find(stem, kind) for kind in ("images-idx3", "labels-idx1")]
            files += pair
            images, numbers = (_parse(_bytes(file), str(file)) for file in pair)
            self._check(split, images, numbers)
            self._images[split], labels[split] = images, numbers.tolist()
        classes = class_names(f"dataset {self.path}", labels, self._classes)
        return listing(self._name, classes, labels, fingerprint(files), (*self._images["train"].shape[1:], 1))

    def read(self, split: str, index: int) -> bytes:
        """Raw pixels of one image, row by row."""
        return self._images[split][index].tobytes()

    def _find(self, stem: str, kind: str) -> Path:
        for separator in ("-", "."):
            for ending in ("", ".gz"):
                file = self.path / f"{stem}-{kind.replace('-', separator)}-ubyte{ending}"
                if file.is_file():
                    return file
        raise DatasetError(f"dataset {self.path}: {stem}-{kind}-ubyte is missing; the source `idx` needs {WANTED}")

    def _check(self, split: str, images: np.ndarray, labels: np.ndarray) -> None:
        if images.ndim != 3 or labels.ndim != 1:
            raise DatasetError(
                f"dataset {self.path}: {split}: images need 3 dimensions and labels 1, found {images.ndim} and {labels.ndim}"
            )
        if len(images) != len(labels) or not len(images):
            raise DatasetError(f"dataset {self.path}: {split}: {len(images)} images but {len(labels)} labels")
        first = self._images.get("train")
        if first is not None and first.shape[1:] != images.shape[1:]:
            raise DatasetError(f"dataset {self.path}: train images are {first.shape[1:]}, test images {images.shape[1:]}; they must agree")


def listing(name: str, classes: list[str], labels: dict[str, list[int]], stamp: str, shape: tuple[int, ...]) -> Listing:
    """The listing of images that are numbered within their split."""
    files = {split: [f"{split}/{index:05d}" for index in range(len(numbers))] for split, numbers in labels.items()}
    return Listing(name, classes, files, labels, stamp, shape)


def _bytes(file: Path) -> bytearray:
    """A file's content, unpacked, and at most one byte more than its header says: a small packed file may hold any number."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            data = bytearray(stream.read(HEADER))
            start, shape = _header(bytes(data), str(file))
            expected = start + math.prod(shape)
            _check_size(file, expected)
            while len(data) <= expected and (block := stream.read(min(BLOCK, expected + 1 - len(data)))):
                data += block
            return data
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
