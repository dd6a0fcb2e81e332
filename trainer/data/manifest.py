"""The manifest of a published dataset: one JSON file with everything a worker needs to know."""

import bisect
import contextlib
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainer.common.errors import DatasetError
from trainer.data.partition import held_out_order
from trainer.data.spec import Spec, of_images

SPLITS = ("train", "test")
FILE = "manifest.json"
DIGESTS = "records.sha256"
"""The SHA-256 of each record, 32 bytes; those of `train` come first."""
FORMAT = 2
TABLE_FORMAT = 3
"""Format version of a table's manifest."""
AGAIN_S = 0.5
"""Between two looks whether a folder is there."""
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
class Table:
    """The contents of a dataset of columns, which has a table in place of records."""

    spec: Spec
    train: int
    """Examples in `train`; those that the dataset itself sets aside for validation are the last of them."""
    test: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, from which `from_json` makes an equal table."""
        return {"spec": self.spec.to_json(), "train": self.train, "test": self.test}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Table":
        """The table of `to_json`; `control.datasets.listing.specs` checks whether JSON is one."""
        return cls(Spec.from_json(raw["spec"]), raw["train"], raw["test"])


@dataclass(frozen=True)
class Manifest:
    """A dataset: images with classes, or a table of columns; its digest and the fixed order that splits off the validation set."""

    digest: str
    """SHA-256 over class names and, for each image, its split, class, name and content; of a table, over its spec and columns."""
    classes: list[str]
    """Names of the classes; empty for a table whose `y` is no class."""
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
    """Indices into `train`; the first `validation_split` of them are the validation images. Empty for a table: see `order`."""
    held_out: int | None = None
    """How many of `order` the dataset itself sets aside; None: `data.validation_split` decides."""
    excluded: list[list[str]] = field(default_factory=list)
    """Images left out because they can't be read: `[name, reason]`. Not in the file: the rest may equal another, complete dataset."""
    sha256: str = ""
    """Digest of the file itself."""
    table: Table | None = None
    """None: the dataset is images."""

    def count(self, split: str) -> int:
        """Number of examples in `train` or `test`."""
        if self.table is not None:
            return self.table.train if split == "train" else self.table.test
        return len(self.records(split).files)

    def spec(self, size: Sequence[int]) -> Spec:
        """Spec of an example; images are fitted to `size` `(height, width, channels)`."""
        return of_images(size) if self.table is None else self.table.spec

    @cached_property
    def order(self) -> np.ndarray:
        """Indices into `train`: first those of validation. A table's follow from its number of examples and `split_seed`."""
        if self.table is None:
            return np.asarray(self.validation_order)
        return held_out_order(self.table.train, self.held_out or 0, self.split_seed)

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


def await_published(published: Published, seconds: float) -> None:
    """Wait until the folder has a manifest, at most so long: a host that has just come up mounts its shared folder later."""
    if _is_there(published.folder / FILE):
        return
    print(f"{published.folder} is not there: waiting up to {seconds:.0f} s for the shared folder", flush=True)
    deadline = time.monotonic() + seconds
    while not _is_there(published.folder / FILE) and time.monotonic() < deadline:
        time.sleep(AGAIN_S)


def _is_there(path: Path) -> bool:
    # A mount whose server is gone gives errors of its own kind.
    with contextlib.suppress(OSError):
        return path.is_file()
    return False


def load(published: Published) -> Manifest:
    """Read a published dataset's manifest; DatasetError if there is none, it is not the published one, or it has another format."""
    path = published.folder / FILE
    if not path.is_file():
        raise DatasetError(f"{published.folder}: no dataset is published there (no {FILE}); run ansible-playbook train.yml to publish it")
    data = path.read_bytes()
    check_digest(path, hashlib.sha256(data).hexdigest(), published.sha256)
    raw = json.loads(data)
    version = raw.pop("format", None)
    if version == TABLE_FORMAT:
        raw |= {"table": Table.from_json(raw["table"]), "shape": None, "shards": [], "validation_order": []}
        raw |= {split: {"files": [], "labels": [], "offsets": []} for split in SPLITS}
    elif version != FORMAT:
        raise DatasetError(f"{path}: written by another version; remove {published.folder} and publish again")
    return Manifest(**{**raw, "train": Records(**raw["train"]), "test": Records(**raw["test"]), "sha256": published.sha256})


def check_digest(what: Path | str, digest: str, published: str) -> None:
    """Refuse bytes that differ from the published ones, with a DatasetError that names the file or record and both digests."""
    if digest != published:
        raise DatasetError(f"{what} has SHA-256 {digest[:16]}..., and {published[:16]}... was published. {REMEDY}")
