"""The registry of dataset sources that can be published. One decorator adds a source.

A source lists its records without decoding them (`scan`) and reads one record's bytes (`read`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trainer.config import nearest
from trainer.errors import DatasetError


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
    note: str = ""
    """What the user should know of its splits; empty for the usual ones."""

    def counts(self, split: str) -> dict[str, int]:
        """Images of each class in a split."""
        totals = dict.fromkeys(self.classes, 0)
        for label in self.labels[split]:
            totals[self.classes[label]] += 1
        return totals


class Source(Protocol):
    """A place from which images can be published."""

    def scan(self) -> Listing:
        """List the records; raises DatasetError if the source can't be used."""

    def read(self, split: str, index: int) -> bytes:
        """Bytes of one record: an image file, or raw pixels."""


_ALONE: set[str] = set()
_SOURCES: dict[str, Callable[[str | None], Source]] = {}


def source(name: str, alone: bool = False) -> Callable[[Callable[[str | None], Source]], Callable[[str | None], Source]]:
    """Register a factory `path -> Source` under a name; `alone`: it needs no path."""

    def register(factory: Callable[[str | None], Source]) -> Callable[[str | None], Source]:
        _SOURCES[name] = factory
        _ALONE.update({name} if alone else ())
        return factory

    return register


def names() -> list[str]:
    """Names of the registered sources."""
    return sorted(_SOURCES)


def open_source(name: str, path: str | None) -> Source:
    """The source of that name at that path.

    Raises:
        DatasetError: no such source.
    """
    if name not in _SOURCES:
        raise DatasetError(f"data.source: {name} is unknown{nearest(name, _SOURCES)}; it must be one of: {', '.join(names())}")
    return _SOURCES[name](path)


def detect(dataset: str) -> dict[str, str | None]:
    """`data.source` and `data.path` for the user's `dataset=`.

    Raises:
        DatasetError: neither a source's name nor an existing path, or of an unknown kind.
    """
    if dataset in _ALONE and not Path(dataset).exists():
        return {"source": dataset, "path": None}
    if ".py:" in dataset:
        file, _, function = dataset.rpartition(":")
        return {"source": "own", "path": f"{Path(file).expanduser().resolve()}:{function}"}
    path = Path(dataset).expanduser()
    if not path.exists():
        alone = sorted(_ALONE)
        raise DatasetError(
            f"dataset={dataset}: no such folder or file{nearest(dataset, alone)}; "
            "give a folder with train/<class>/ and test/<class>/, MNIST-format files, TFRecords, FILE.py:FUNCTION, "
            f"or {'one of: ' if len(alone) > 1 else ''}{', '.join(alone)}"
        )
    return {"source": _kind(path), "path": str(path.resolve())}


def _kind(path: Path) -> str:
    names = [file.name for file in ([path] if path.is_file() else path.iterdir()) if file.is_file()]
    if any("idx" in name and "ubyte" in name for name in names):
        return "idx"
    return "tfrecords" if any(".tfrecord" in name for name in names) else "folder"
