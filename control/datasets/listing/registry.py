"""The registry of dataset sources that can be published. One decorator adds a source.

A source lists its records without decoding them (`scan`) and reads one record's bytes (`read`).
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trainer.common.errors import DatasetError
from trainer.common.safe_text import printable
from trainer.common.suggest import nearest
from trainer.config.schema import Data
from trainer.data.manifest import SPLITS, Table


@dataclass
class Listing:
    """The contents of a source: names and labels of both splits, nothing decoded yet."""

    name: str
    classes: list[str]
    files: dict[str, list[str]]
    """`train` and `test`: a name for each image, unique in its split."""
    labels: dict[str, list[int]]
    """`train` and `test`: an index into `classes` for each image."""
    fingerprint: str
    """Digest of names, sizes and times: unchanged while the source is untouched."""
    shape: tuple[int, ...] | None = None
    """`(height, width, channels)` if records are raw pixels; None if they are image files."""
    ignored: list[str] = field(default_factory=list)
    """Entries of class folders that are not images: files of other kinds, folders, broken links."""
    held_out: int | None = None
    """How many images, the first of `train`, the dataset itself sets aside for validation; None: `data.validation_split` decides."""
    draws_test: bool = False
    """True if `data.test_split` draws the test examples, as the source has none of its own."""
    note: str = ""
    """A note for the user about its splits; empty for the usual ones."""
    table: Table | None = None
    """Table of columns, which have neither `files` nor `labels`; None: images."""
    folder: Path | None = None
    """The files of a table's columns, ready to be published."""
    warnings: list[str] = field(default_factory=list)
    targets: dict[str, list[float]] = field(default_factory=dict)
    """Lowest and highest number of a single `y` of columns, in `train`, `validation` and `test`."""

    def count(self, split: str) -> int:
        """Number of examples in `train` or `test`."""
        if self.table is not None:
            return self.table.train if split == "train" else self.table.test
        return len(self.files[split])


class Source(Protocol):
    """Images, or columns, that can be published."""

    def scan(self) -> Listing:
        """List the records; DatasetError if they can't be used."""

    def read(self, split: str, index: int) -> bytes:
        """Bytes of one record: an image file, or raw pixels. Never called if the listing has a table."""


Factory = Callable[..., Source]
_SOURCES: dict[str, tuple[Factory, str, Sequence[str]]] = {}


def source(name: str, needs: str = "", takes: Sequence[str] = ()) -> Callable[[Factory], Factory]:
    """Register a factory `path -> Source` under a name.

    Args:
        name: its name.
        needs: what the path must be, empty if the source also works without one.
        takes: keys of `data` that the factory also takes, by their names: `target`, `features`, `test_split`.
    """

    def register(factory: Factory) -> Factory:
        _SOURCES[name] = factory, needs, takes
        return factory

    return register


def open_source(
    name: str,
    path: str | None,
    target: str | None = None,
    features: Sequence[str] | None = None,
    test_split: float = Data.test_split,
) -> Source:
    """The source of that name at that path; DatasetError if there is none, if it needs a path, or if it has no columns to name."""
    if name not in _SOURCES:
        raise DatasetError(f"data.source: {name} is unknown{nearest(name, _SOURCES)}; it must be one of: {', '.join(sorted(_SOURCES))}")
    factory, needs, takes = _SOURCES[name]
    if path is None and needs:
        raise DatasetError(f"data.path: the source `{name}` needs {needs}")
    given = {"target": target, "features": features, "test_split": test_split}
    for key in ("target", "features"):
        if given[key] is not None and key not in takes:
            raise DatasetError(f"data.{key}={given[key]}: the source `{name}` has images with classes, no columns; leave data.{key} out")
    return factory(path, **{key: given[key] for key in takes})


def alone() -> list[str]:
    """Names of the sources that need no path."""
    return sorted(name for name, (_, needs, _) in _SOURCES.items() if not needs)


def detect(dataset: str) -> dict[str, str | None]:
    """`data.source` and `data.path` for the user's `dataset=`; DatasetError if it is neither a source's name nor an existing path."""
    names = alone()
    if dataset in names and not Path(dataset).exists():
        return {"source": dataset, "path": None}
    if ".py:" in dataset:
        file, _, function = dataset.rpartition(":")
        return {"source": "own", "path": f"{Path(file).expanduser().resolve()}:{function}"}
    path = Path(dataset).expanduser()
    if not path.exists():
        raise DatasetError(
            f"dataset={dataset}: no such folder or file{nearest(dataset, names) or _beside(path)}; "
            "give a folder with train/<class>/ and test/<class>/, MNIST-format files, TFRecords, CSV or Parquet files, FILE.py:FUNCTION, "
            f"or {'one of: ' if len(names) > 1 else ''}{', '.join(names)}"
        )
    return {"source": _kind(path), "path": str(path.resolve())}


def _beside(path: Path) -> str:
    """A hint at the file or folder that was meant, if its name is close to one that is there; else empty."""
    try:
        there = [printable(one.name) for one in path.parent.iterdir()]
    except OSError:
        return ""
    return nearest(path.name, there, f"{path.parent}/")


def _kind(path: Path) -> str:
    names = [file.name for file in ([path] if path.is_file() else path.iterdir()) if file.is_file()]
    if any("idx" in name and "ubyte" in name for name in names):
        return "idx"
    if any(".tfrecord" in name for name in names):
        return "tfrecords"
    return "columns" if is_table(path) else "folder"


TABLES = (".csv", ".tsv", ".parquet")


def is_table(path: Path) -> bool:
    """Return whether a file is a table, or a folder holds tables: directly, or in its folders for training."""
    if path.is_file():
        return path.suffix.lower() in TABLES
    inside = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    if any(entry.is_dir() for entry in inside):
        train = [entry for entry in inside if entry.name.lower().startswith("train")]
        inside = [file for entry in train for file in (entry.iterdir() if entry.is_dir() else [entry])]
    return any(entry.is_file() and entry.suffix.lower() in TABLES for entry in inside)


def folder_of(path: str) -> Path:
    """The dataset's folder; one of its files stands for it."""
    given = Path(path).expanduser().resolve()
    return given.parent if given.is_file() else given


def fingerprint(files: Iterable[Path]) -> str:
    """Digest of the files' paths, sizes and times; a missing file has size and time 0."""
    digest = hashlib.sha256()
    for file in files:
        stat = file.stat() if file.exists() else None
        digest.update(os.fsencode(f"{file}\0{stat.st_size if stat else 0}\0{stat.st_mtime_ns if stat else 0}\n"))
    return digest.hexdigest()


def class_names(dataset: str, labels: Mapping[str, Sequence[int]], names: Sequence[str] = ()) -> list[str]:
    """The classes behind integer labels: `names`, or the numbers themselves; DatasetError for gaps, or if a split lacks a class."""
    used = sorted({*labels["train"], *labels["test"]})
    last = len(names) - 1 if names else used[-1]
    if used != list(range(len(used))) or used[-1] != last or last < 1:
        listed = ", ".join(map(str, used[:20])) + (", ..." if len(used) > 20 else "")
        raise DatasetError(f"{dataset}: labels must run from 0 to {last} without gaps, and be at least two; found {listed}")
    classes = list(names) or [str(label) for label in used]
    check_classes(dataset, labels, classes)
    return classes


def ordered_classes(classes: set[str]) -> list[str]:
    """Names alphabetically; numbers, if all are, by value."""
    numbers = all(name.isdecimal() for name in classes)
    return sorted(classes, key=lambda name: (int(name), name) if numbers else (0, name))


def check_classes(dataset: str, labels: Mapping[str, Sequence[int]], classes: Sequence[str]) -> None:
    """Refuse a split that lacks a class, and a dataset with fewer than two."""
    for split in SPLITS:
        missing = sorted(set(range(len(classes))) - set(labels[split]))
        if missing:
            raise DatasetError(f"{dataset}: {split} has no image of class {classes[missing[0]]}; train and test must hold the same classes")
    if len(classes) < 2:
        raise DatasetError(f"{dataset}: at least two classes are needed, found: {', '.join(classes) or 'none'}")
