"""The manifest of a published dataset: one JSON file with everything a worker needs to know."""

import bisect
import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import DatasetError
from trainer.files import write_json

SPLITS = ("train", "test")
FILE = "manifest.json"
DIGESTS = "records.sha256"
"""The SHA-256 of each record, 32 bytes; those of `train` come first."""
FORMAT = 2
SPLIT_SEED = 0
REMEDY = (
    "The shared folder was written by somebody else, or its disk is damaged. Fix: run the same command again, it sends anew what was "
    "changed; if it stays: ansible-playbook doctor.yml compares every byte"
)


@dataclass(frozen=True)
class Published:
    """A reference to a published dataset: the digest comes from the control node, never from the folder."""

    folder: Path
    sha256: str
    """Digest of the manifest's bytes; the manifest determines the rest of the dataset."""


@dataclass(frozen=True)
class Records:
    """The images of one split, in packing order."""

    files: list[str]
    labels: list[int]
    offsets: list[int]
    """Where each record starts in the concatenated shards; the last entry, one more than files, is the end."""


@dataclass(frozen=True)
class Manifest:
    """A dataset: its images, labels, digest and the fixed order that splits off the validation set."""

    digest: str
    """SHA-256 over class names and, for each image, its split, class, name and content."""
    classes: list[str]
    shape: list[int] | None
    """`[height, width, channels]` of raw records; None: records are image files."""
    shards: list[int]
    """Bytes in each pack file; no record crosses from one to the next."""
    sums: dict[str, str]
    """SHA-256 of every other file in the folder, by name."""
    train: Records
    test: Records
    split_seed: int
    validation_order: list[int]
    """Indices into `train`; the first `validation_split` of them are the validation images."""
    held_out: int | None = None
    """How many of `validation_order` the dataset itself sets aside; None: `data.validation_split` decides."""
    excluded: list[list[str]] = field(default_factory=list)
    """Images left out because they can't be read: `[name, reason]`. Not in the file: the rest may equal another, complete dataset."""
    sha256: str = ""
    """Digest of the file itself."""

    def records(self, split: str) -> Records:
        """The records of `train` or `test`."""
        return self.train if split == "train" else self.test

    @cached_property
    def shard_starts(self) -> list[int]:
        """Where each pack file starts in the concatenated shards."""
        return [0, *np.cumsum(self.shards).tolist()]

    def locate(self, offset: int) -> tuple[int, int]:
        """Number of the pack file that holds a byte, and the byte's offset in it."""
        shard = bisect.bisect_right(self.shard_starts, offset) - 1
        return shard, offset - self.shard_starts[shard]


def shard_name(number: int) -> str:
    """File name of a pack."""
    return f"data-{number:05d}.pack"


def save(manifest: Manifest, folder: Path) -> Manifest:
    """Write the manifest into its folder, last: a folder with a manifest is complete. Return it with its digest."""
    content = {key: value for key, value in dataclasses.asdict(manifest).items() if key not in ("excluded", "sha256")}
    write_json(folder / FILE, {"format": FORMAT, **content})
    return dataclasses.replace(manifest, sha256=hashlib.sha256((folder / FILE).read_bytes()).hexdigest())


def load(published: Published) -> Manifest:
    """Read a published dataset's manifest; DatasetError if there is none, it is not the published one, or it has another format."""
    path = published.folder / FILE
    if not path.is_file():
        raise DatasetError(f"{published.folder}: no dataset is published there (no {FILE}); run ansible-playbook train.yml to publish it")
    data = path.read_bytes()
    check(path, hashlib.sha256(data).hexdigest(), published.sha256)
    raw: dict[str, Any] = json.loads(data)
    if raw.pop("format", None) != FORMAT:
        raise DatasetError(f"{path}: written by another version; remove {published.folder} and publish again")
    return Manifest(**{**raw, "train": Records(**raw["train"]), "test": Records(**raw["test"]), "sha256": published.sha256})


def check(what: Path | str, found: str, wanted: str) -> None:
    """Refuse bytes that differ from the published ones, with a DatasetError that names the file or record and both digests."""
    if found != wanted:
        raise DatasetError(f"{what} has SHA-256 {found[:16]}..., and {wanted[:16]}... was published. {REMEDY}")
