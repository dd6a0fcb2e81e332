"""TFRecord files: written from arrays, and the source `tfrecords` that reads any number of shards of labelled images.

Records are `tf.train.Example`s with the features `image` (bytes: an image file, or raw pixels) and `label` (int64); the names from
TensorFlow's own examples also work. A file `dataset.json` beside the shards may name the classes and the layout of raw pixels:
`{"classes": [...], "shape": [3, 32, 32], "layout": "CHW"}`.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from control.common.project import ROOT
from control.datasets.listing.registry import Listing, class_names, fingerprint, folder_of, source
from trainer.common.errors import DatasetError, refusal
from trainer.common.files import read_json, replacing, sync
from trainer.common.safe_text import printable

ABOUT = "dataset.json"
LARGEST_ABOUT = 16 * 2**20
"""Bytes of it: 100,000 classes take less."""
SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test", "eval")}
IMAGE = ("image", "image/encoded", "image_raw", "image/raw")
LABEL = ("label", "image/class/label", "class")
SIDES = (("height", "width", "depth"), ("image/height", "image/width", "image/channels"), ("height", "width", "channels"))
FILES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8")
"""First bytes of JPEG, PNG and GIF files."""
GUESSED = {3072: ((32, 32, 3), "CHW"), 784: ((28, 28, 1), "HWC")}
"""Default height, width, channels and layout of raw images of these sizes, CIFAR-10's and MNIST's."""
LAYOUTS = {"HWC": (0, 1, 2), "CHW": (1, 2, 0)}
"""Where rows, columns and channels are."""
INDEXES = Path(".lockstep/sources/tfrecords")
COMPRESSED = {"GZIP": (b"\x1f\x8b",), "ZLIB": (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")}
"""First bytes of compressed files; a record's length may begin like them, too."""
HEADER, FOOTER = 12, 4
"""Bytes around a record: its length with a checksum, and its own checksum."""
LARGEST_RECORD = 2**30
"""Bytes: half of what a `tf.train.Example` may have at all."""
SHOWN = 20
"""Features that a message names."""
LAYOUT = "TFRecord files named train*, test* (or eval*) and, where there are any, validation*, ending in .tfrecord or .tfrecords"


def write_records(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Write records of raw images `[n, ...]` uint8 and labels `[n]`."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as stream:
        for image, label in zip(images, labels, strict=True):
            feature = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
            }
            stream.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    sync(path)


def _shards(folder: Path) -> dict[str, list[Path]]:
    """The files of each split, by name."""
    files = sorted(path for path in folder.iterdir() if ".tfrecord" in path.name and path.is_file()) if folder.is_dir() else []
    return {split: [path for path in files if path.name.lower().startswith(names)] for split, names in SPLITS.items()}


@source("tfrecords", f"a folder with {LAYOUT}")
class TFRecords:
    """Shards in one folder."""

    def __init__(self, path: str):
        self.path = folder_of(path)
        self._records: dict[str, tuple[list[Path], np.ndarray]] = {}
        self._shape: tuple[int, ...] | None = None
        self._axes: tuple[int, ...] = LAYOUTS["HWC"]

    def scan(self) -> Listing:
        """Count the records and read their labels: every record is read once, and the result is kept while files are untouched."""
        files = _shards(self.path)
        for split in ("train", "test"):
            if not files[split]:
                raise DatasetError(f"dataset {self.path}: there is no {split} in it; it needs {LAYOUT}")
        stamp = fingerprint(sorted({path for paths in files.values() for path in paths} | {self.path / ABOUT}))
        index, about = self._index(stamp), self._about()
        self._shape, self._axes = _shape(index, about, self.path)
        # Validation records are held-out training images: they come first.
        held = index["validation"]
        rest = index["train"] + np.array([len(files["validation"]), 0, 0, 0])
        self._records = {
            "train": ([*files["validation"], *files["train"]], np.concatenate([held, rest])),
            "test": (files["test"], index["test"]),
        }
        labels = {split: rows[:, 3].tolist() for split, (_, rows) in self._records.items()}
        classes = class_names(f"dataset {self.path}", labels, [str(name) for name in about.get("classes", [])])
        names = {split: [f"{split}/{number:07d}" for number in range(len(index[split]))] for split in SPLITS}
        listed = {"train": names["validation"] + names["train"], "test": names["test"]}
        shape = tuple(self._shape[axis] for axis in self._axes) if self._shape else None
        return Listing(self.path.name, classes, listed, labels, stamp, shape, held_out=len(held) or None)

    def read(self, split: str, index: int) -> bytes:
        """Bytes of one record's image: an image file, or raw pixels by rows, columns and channels."""
        files, rows = self._records[split]
        shard, offset, length, _ = rows[index]
        with files[shard].open("rb") as stream:
            stream.seek(offset)
            image = stream.read(length)
        return np.frombuffer(image, np.uint8).reshape(self._shape).transpose(self._axes).tobytes() if self._shape else image

    def _about(self) -> dict[str, Any]:
        path = self.path / ABOUT
        if not path.is_file():
            return {}
        if path.stat().st_size > LARGEST_ABOUT:
            raise DatasetError(f"{path}: {path.stat().st_size:,} bytes; at most {LARGEST_ABOUT:,} are read")
        try:
            about = dict(read_json(path))
        except (ValueError, TypeError, RecursionError) as error:
            raise DatasetError(f"{path}: not a JSON object: {error}") from None
        kinds = {"classes": (str, int), "shape": (int,)}
        for name, kind in kinds.items():
            if not isinstance(about.get(name, []), list) or not all(type(one) in kind for one in about.get(name, [])):
                called = " or ".join({str: "texts", int: "whole numbers"}[one] for one in kind)
                raise DatasetError(f"{path}: {name} is {printable(json.dumps(about[name]), 80)}; it must be a list of {called}")
        return about

    def _index(self, stamp: str) -> dict[str, np.ndarray]:
        kept = INDEXES.resolve() / f"{stamp[:16]}.npz"
        if not kept.is_file():
            # In its own process: publishing forks, and a process with TensorFlow must not.
            argv = [sys.executable, "-m", "control", "index-records", "--folder", str(self.path), "--out", str(kept)]
            completed = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
            if completed.returncode != 0:
                raise DatasetError(refusal(completed.stderr) or completed.stderr.strip())
        with np.load(kept) as stored:
            return dict(stored)


def write_index(folder: Path, out: Path) -> None:
    """Read every record of a folder's shards, and write the position of its image; DatasetError if one is damaged or can't be used.

    By split `[records, 4]` int64: number of the shard, offset of the image, its bytes, its label; and `size`: bytes of the first
    image, or 0 if it is a file, then the sides in its record.
    """
    index, size = {}, None
    for split, files in _shards(folder).items():
        rows: list[tuple[int, int, int, int]] = []
        for number, path in enumerate(files):
            for offset, record, features in read_records(path):
                image, label = _fields(features, path, len(rows))
                own = _size(image, features)
                size = size or own
                _check_like_first(image, own, size, f"{path}: record {len(rows)}")
                rows.append((number, offset + record.index(image), len(image), label))
        if not rows and split != "validation":
            raise DatasetError(f"{files[0]}: no records{', nor in the other files of its split' if len(files) > 1 else ''}")
        index[split] = np.asarray(rows, np.int64).reshape(-1, 4)
    with replacing(out) as part, part.open("wb") as stream:
        np.savez(stream, allow_pickle=False, size=np.asarray(size, np.int64), **index)


def read_records(path: Path) -> Iterator[tuple[int, bytes, Any]]:
    """The offset of each record in a file, its bytes, and its features; TensorFlow verifies its checksums."""
    _check_lengths(path)
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    offset = HEADER
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            yield offset, record, tf.train.Example.FromString(record).features.feature
            offset += len(record) + FOOTER + HEADER
    except (tf.errors.DataLossError, DecodeError) as error:
        raise DatasetError(f"{path}: truncated or damaged after byte {offset - HEADER:,}: {str(error).splitlines()[0]}") from None
    except tf.errors.OpError as error:
        raise DatasetError(f"{path}: can't be read: {error.message}") from None


def _check_lengths(path: Path) -> None:
    """Refuse records that are no records, by their headers: TensorFlow takes memory for as many bytes as a header says."""
    size, offset = path.stat().st_size, 0
    with path.open("rb") as stream:
        while offset < size:
            stream.seek(offset)
            start = stream.read(HEADER)
            length, left = int.from_bytes(start[:8], "little"), size - offset - HEADER - FOOTER
            if length > left:
                if offset == 0 and (kind := next((kind for kind, begins in COMPRESSED.items() if start[:2] in begins), "")):
                    raise DatasetError(f"{path}: its records are compressed ({kind}). Fix: write them without compression_type")
                why = f"the next record has {length:,} bytes by its header, and {max(0, left):,} are there"
                raise DatasetError(f"{path}: truncated or damaged after byte {offset:,}: {why}")
            if length > LARGEST_RECORD:
                raise DatasetError(
                    f"{path}: the record after byte {offset:,} has {length:,} bytes; at most {LARGEST_RECORD:,} are read. "
                    "Fix: one image in each record"
                )
            offset += HEADER + length + FOOTER


def _fields(features: Any, path: Path, number: int) -> tuple[bytes, int]:
    image = next((features[key].bytes_list.value for key in IMAGE if key in features), None)
    label = next((features[key].int64_list.value for key in LABEL if key in features), None)
    if not image or not label:
        names = printable(", ".join(sorted(features)[:SHOWN]), 500) or "none"
        names += f", {len(features) - SHOWN:,} more" if len(features) > SHOWN else ""
        raise DatasetError(f"{path}: record {number} has no feature `image` (bytes) or `label` (int64); it has: {names}")
    return image[0], int(label[0])


def _is_file(image: bytes) -> bool:
    # Many raw images begin with "BM", too.
    bitmap = image.startswith(b"BM") and int.from_bytes(image[2:6], "little") == len(image)
    return bitmap or image.startswith(FILES)


def _check_like_first(image: bytes, own: tuple[int, ...], first: tuple[int, ...], where: str) -> None:
    """Refuse raw pixels among files, and pixels of another size or shape."""
    if first[0] and len(image) != first[0]:
        raise DatasetError(f"{where} has an image of {len(image):,} bytes, the first one {first[0]:,} raw ones; all must be alike")
    if not first[0] and not _is_file(image):
        raise DatasetError(f"{where} is not a JPEG, PNG, BMP or GIF, but the first one is; all must be alike")
    if first[0] and own[0] and own != first:
        raise DatasetError(f"{where} has sides {list(own[1:])}, the first one {list(first[1:])}; all must be alike")


def _size(image: bytes, features: Any) -> tuple[int, ...]:
    """Bytes of a raw image, or 0 for an image file, and the sides in its record."""
    if _is_file(image):
        return (0,)
    for names in SIDES:
        if all(name in features and features[name].int64_list.value for name in names):
            return len(image), *(int(features[name].int64_list.value[0]) for name in names)
    return (len(image),)


def _shape(index: dict[str, np.ndarray], about: dict[str, Any], path: Path) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """Shape of raw pixels, None for image files; and its axes of rows, columns and channels."""
    size, *sides = index["size"].tolist()
    if size == 0:
        return None, LAYOUTS["HWC"]
    guessed, usual = GUESSED.get(size, ((), "HWC"))
    layout = str(about.get("layout", "HWC" if sides or "shape" in about else usual))
    if layout not in LAYOUTS:
        raise DatasetError(f"{path / ABOUT}: layout {layout}; raw pixels are HWC (rows, columns, channels) or CHW (channels first)")
    axes = LAYOUTS[layout]
    shape = tuple(about.get("shape", [(sides or guessed)[axes.index(axis)] for axis in range(3)] if sides or guessed else []))
    if len(shape) != 3 or math.prod(shape) != size:
        known = f"with shape {list(shape)} and layout {layout}" if shape else "of unknown shape"
        raise DatasetError(
            f"dataset {path}: its images are {size:,} raw bytes, {known}; give shape and layout in {path / ABOUT}: "
            + json.dumps({"shape": [3, 32, 32], "layout": "CHW"})
        )
    if (channels := shape[axes[2]]) not in (1, 3):
        raise DatasetError(f"dataset {path}: its raw images have {channels} channels ({list(shape)}, {layout}); it must be 1 (grey) or 3")
    return shape, axes
