"""Source `idx`: the four files of MNIST's format (LeCun, Cortes, Burges), plain or gzipped."""

import gzip
import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np

from control.datasets.sources import Listing, source
from trainer.errors import DatasetError

STEMS = {"train": "train", "test": "t10k"}
WANTED = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (each plain or .gz)"


def parse(data: bytes, name: str) -> np.ndarray:
    """Parse an idx file's bytes to a uint8 array of the shape in its header.

    Raises:
        DatasetError: not idx, not unsigned bytes, or fewer bytes than the header says.
    """
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != 8:
        raise DatasetError(f"{name}: not an idx file of unsigned bytes (magic {data[:4].hex()})")
    dimensions = data[3]
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise DatasetError(f"{name}: truncated: the file ends inside its header")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    expected = int(np.prod(shape))
    if len(data) - start != expected:
        raise DatasetError(f"{name}: truncated or damaged: {expected} bytes by its header, {len(data) - start} in it")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


@source("idx")
class Idx:
    """MNIST-format files in one folder."""

    def __init__(self, path: str | None, name: str | None = None, classes: list[str] | None = None):
        if path is None:
            raise DatasetError(f"data.path: the source `idx` needs a folder with {WANTED}")
        folder = Path(path).expanduser().resolve()
        self.path = folder.parent if folder.is_file() else folder
        self._name, self._classes = name or self.path.name, classes
        self._images: dict[str, np.ndarray] = {}

    def scan(self) -> Listing:
        """Read the files and list their records."""
        arrays, stamp = {}, hashlib.sha256()
        for split, stem in STEMS.items():
            for kind in ("images-idx3", "labels-idx1"):
                file = self._find(stem, kind)
                stat = file.stat()
                stamp.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
                arrays[split, kind] = parse(_bytes(file), str(file))
            self._check(split, arrays[split, "images-idx3"], arrays[split, "labels-idx1"])
            self._images[split] = arrays[split, "images-idx3"]
        labels = {split: arrays[split, "labels-idx1"].astype(int).tolist() for split in STEMS}
        classes = self._class_names(labels)
        files = {split: [f"{split}/{index:05d}" for index in range(len(labels[split]))] for split in STEMS}
        shape = (*self._images["train"].shape[1:], 1)
        return Listing(self._name, classes, files, labels, stamp.hexdigest(), shape)

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

    def _class_names(self, labels: dict[str, list[int]]) -> list[str]:
        train, test = set(labels["train"]), set(labels["test"])
        if train != test:
            raise DatasetError(f"dataset {self.path}: train/ and test/ must hold the same classes; differing: {sorted(train ^ test)}")
        if len(train) < 2:
            raise DatasetError(f"dataset {self.path}: at least two classes are needed, found: {sorted(train)}")
        names = self._classes or [str(label) for label in range(max(train) + 1)]
        if train != set(range(len(names))):
            raise DatasetError(f"dataset {self.path}: labels must run from 0 to {len(names) - 1} without gaps, found {sorted(train)}")
        return names


def _bytes(file: Path) -> bytes:
    try:
        data = file.read_bytes()
        return gzip.decompress(data) if file.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{file}: can't be read: {error}") from None
