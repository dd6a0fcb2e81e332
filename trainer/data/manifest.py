"""The manifest of a published dataset: one JSON file that says all a worker needs to know."""

import bisect
import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import DatasetError
from trainer.files import read_json, write_json

FILE = "manifest.json"
FORMAT = 1
SPLIT_SEED = 0


@dataclass(frozen=True)
class Records:
    """The images of one split, in the order in which they are packed."""

    files: list[str]
    labels: list[int]
    offsets: list[int]
    """Where each record starts in the shards laid end to end; one more entry than files: the end."""


@dataclass(frozen=True)
class Manifest:
    """A dataset: its images, labels, digest and the fixed order that splits off validation."""

    name: str
    source: str
    digest: str
    """SHA-256 over class names and, for each image, its split, class, name and content."""
    classes: list[str]
    shape: list[int] | None
    """`[height, width, channels]` of raw records; None: records are image files."""
    shards: list[int]
    """Bytes in each pack file; no record crosses from one to the next."""
    train: Records
    test: Records
    split_seed: int
    validation_order: list[int]
    """Indices into `train`; the first `validation_split` of them are the validation images."""
    excluded: list[list[str]]
    """Images left out because they can't be read: `[name, reason]`."""
    held_out: int | None = None
    """How many of `validation_order` the dataset itself sets aside; None: `data.validation_split` decides."""

    def records(self, split: str) -> Records:
        """The records of `train` or `test`."""
        return self.train if split == "train" else self.test

    def counts(self, split: str) -> dict[str, int]:
        """Images of each class."""
        totals = np.bincount(self.records(split).labels, minlength=len(self.classes))
        return dict(zip(self.classes, totals.tolist(), strict=True))

    @cached_property
    def shard_starts(self) -> list[int]:
        """Where each pack file starts in the shards laid end to end."""
        return [0, *np.cumsum(self.shards).tolist()]

    def locate(self, offset: int) -> tuple[int, int]:
        """Number of the pack file that holds a byte, and the byte's place in it."""
        shard = bisect.bisect_right(self.shard_starts, offset) - 1
        return shard, offset - self.shard_starts[shard]


def shard_name(number: int) -> str:
    """File name of a pack."""
    return f"data-{number:05d}.pack"


def save(manifest: Manifest, folder: Path) -> None:
    """Write the manifest into its folder, last of all: a folder with a manifest is complete."""
    write_json(folder / FILE, {"format": FORMAT, **dataclasses.asdict(manifest)})


def load(folder: Path) -> Manifest:
    """Read a published dataset's manifest.

    Raises:
        DatasetError: there is none, or it is of another format.
    """
    path = folder / FILE
    if not path.is_file():
        raise DatasetError(f"{folder}: no dataset is published there (no {FILE}); run ansible-playbook train.yml to publish it")
    raw: dict[str, Any] = read_json(path)
    if raw.pop("format", None) != FORMAT:
        raise DatasetError(f"{path}: written by another version; remove {folder} and publish again")
    return Manifest(**{**raw, "train": Records(**raw["train"]), "test": Records(**raw["test"])})
