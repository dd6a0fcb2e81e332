"""Publish a dataset: check every image once, write it into a few packed files and a manifest.

A published dataset is a folder named by its digest. Publishing the same source again reads only names, sizes and times.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from control.datasets.listing import stratified, unfinished
from control.datasets.listing.kept_columns import ColumnFolder
from control.datasets.listing.registry import Listing, Source
from control.datasets.listing.stratified import stratified_order
from control.datasets.publishing.image_check import CHUNK, READING, ImageCheck, Progress, Record, check_readable, refuse
from trainer.common.errors import DatasetError
from trainer.common.files import FOLDER, read_json, sha256_file, stamp, sync, write_json
from trainer.data import manifest
from trainer.data.manifest import FILE, FORMAT, SPLITS, TABLE_FORMAT, Manifest, Published, Records

TABLE_KEYS = ("digest", "classes", "sums", "split_seed", "held_out")


SHARD_BYTES = 256 * 2**20


@dataclass(frozen=True)
class PublishedData:
    """A dataset as published, or as it will be, when it has no digests yet."""

    digest: str | None
    manifest: str | None
    """Digest of the manifest's file."""
    train: int
    """Examples in `train` and `test`."""
    test: int
    held_out: int | None = None
    """How many of `train` the dataset itself sets aside for validation; None: `data.validation_split` decides."""
    excluded: Sequence[Sequence[str]] = ()
    """Name and reason of each image that was left out."""

    @classmethod
    def of(cls, packed: Manifest) -> "PublishedData":
        """The record of a manifest."""
        return cls(packed.digest, packed.sha256, packed.count("train"), packed.count("test"), packed.held_out, packed.excluded)

    @classmethod
    def expected(cls, listing: Listing, excluded: Sequence[Sequence[str]] = ()) -> "PublishedData":
        """The record that publishing a source will give, as far as it is known before."""
        return cls(None, None, listing.count("train"), listing.count("test"), listing.held_out, excluded)

    @classmethod
    def parsed(cls, raw: Mapping[str, Any]) -> "PublishedData":
        """The record in JSON, or in a plan, beside other entries."""
        return cls(**{one.name: raw[one.name] for one in dataclasses.fields(cls) if one.name in raw})

    def place(self, packs: Path) -> Published:
        """Its folder in that of published datasets."""
        assert self.manifest is not None
        return place_of(packs, self.manifest)


def published(listing: Listing, packs: Path, allow_bad: bool) -> PublishedData | None:
    """The record of this unchanged source, if it is already published in `packs`."""
    entry = _index(listing, packs, allow_bad)
    if not entry.is_file():
        return None
    raw = read_json(entry)
    record = PublishedData.parsed(raw)
    dataset = record.place(packs)
    current = _stamps(dataset.folder)
    if current != raw["stamps"]:
        if _damaged_files(dataset):
            return None
        with contextlib.suppress(OSError):
            _write_record(entry, record, current)
    return record


def _write_record(entry: Path, record: PublishedData, stamps: dict[str, list[int]]) -> None:
    write_json(entry, {**dataclasses.asdict(record), "stamps": stamps})


def place_of(packs: Path, sha256: str) -> Published:
    """The folder of the dataset whose manifest has that digest."""
    return Published(packs / sha256[:16], sha256)


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Stamps by file name that show whether files are untouched, without reading them."""
    return {path.name: stamp(path) for path in sorted(folder.iterdir())} if folder.is_dir() else {}


def _damaged_files(dataset: Published) -> list[str]:
    """Files of a published dataset that are missing or changed; reads all of them."""
    try:
        sums = manifest.load(dataset).sums
    except (DatasetError, ValueError):
        return [manifest.FILE]
    return [name for name, sha256 in sums.items() if not (dataset.folder / name).is_file() or sha256_file(dataset.folder / name) != sha256]


def publish(source: Source, packs: Path, allow_bad: bool, progress: Progress) -> Manifest:
    """Write `source` under `packs/<digest of the manifest>/`, unless it already exists there.

    Excluded images are recorded per source: two sources that differ in nothing else share a digest. DatasetError names unreadable
    images, unless `allow_bad`, or a class that has none left.
    """
    listing = source.scan()
    record = published(listing, packs, allow_bad)
    if record is None:
        record = PublishedData.of(_pack(source, listing, packs, allow_bad, progress))
        _write_record(_index(listing, packs, allow_bad), record, _stamps(record.place(packs).folder))
    return dataclasses.replace(manifest.load(record.place(packs)), excluded=[list(one) for one in record.excluded])


def _index(listing: Listing, packs: Path, allow_bad: bool) -> Path:
    reading = f"{READING}\0{listing.shape}\0{chr(0).join(listing.classes)}"
    reading += f"\0{listing.table}" if listing.table is not None else ""
    key = hashlib.sha256(f"{listing.name}\0{listing.fingerprint}\0{allow_bad}\0{reading}".encode()).hexdigest()
    return packs / "index" / f"{key[:16]}.json"


def _pack(source: Source, listing: Listing, packs: Path, allow_bad: bool, progress: Progress) -> Manifest:
    with unfinished.folder_in(packs) as part:
        result = (
            _pack_images(source, listing, part, packs, allow_bad, progress)
            if listing.table is None
            else _pack_table(listing, part, progress)
        )
        part.chmod(FOLDER)
        dataset = place_of(packs, result.sha256)
        if _damaged_files(dataset):
            shutil.rmtree(dataset.folder, ignore_errors=True)
            part.rename(dataset.folder)
        return result


def _pack_images(source: Source, listing: Listing, part: Path, packs: Path, allow_bad: bool, progress: Progress) -> Manifest:
    writer, check = _Writer(part, listing), ImageCheck(source, listing, packs)
    for done, (split, number, record) in enumerate(check.records(check.known), 1):
        writer.add(split, number, record)
        if done % CHUNK == 0:
            progress(done, writer.total)
    progress(writer.total, writer.total)
    return writer.finish(allow_bad)


def _pack_table(listing: Listing, part: Path, progress: Progress) -> Manifest:
    """Copy a table's files, and write its manifest."""
    assert listing.table is not None
    assert listing.folder is not None
    sums = ColumnFolder(listing.folder).copy(part, progress)
    content = json.dumps([listing.table.to_json(), listing.classes, listing.held_out, sorted(sums.items())])
    digest, empty = hashlib.sha256(content.encode()).hexdigest(), Records([], [], [])
    packed = Manifest(
        digest, listing.classes, None, [], sums, empty, empty, stratified.SPLIT_SEED, [], listing.held_out, table=listing.table
    )
    return _save(packed, part)


class _Writer:
    """Appends records to shards and records their positions."""

    def __init__(self, part: Path, listing: Listing):
        self.part, self.listing = part, listing
        self.total = sum(len(files) for files in listing.files.values())
        self._records = {split: Records([], [], []) for split in SPLITS}
        self._bad: list[list[str]] = []
        self._shards: list[int] = []
        self._sums: dict[str, str] = {}
        self._sum = hashlib.sha256()
        self._digests = bytearray()
        self._offset = 0
        self._stream: BinaryIO | None = None
        self._digest = hashlib.sha256("\0".join(listing.classes).encode() + repr(listing.shape).encode())

    def add(self, split: str, number: int, record: Record) -> None:
        data, error = record
        name, label = self.listing.files[split][number], self.listing.labels[split][number]
        if error is not None:
            self._bad.append([name, error])
            return
        content = hashlib.sha256(data)
        self._digest.update(os.fsencode(f"{split}\0{label}\0{name}\0{content.hexdigest()}\n"))
        self._digests += content.digest()
        records = self._records[split]
        records.files.append(name)
        records.labels.append(label)
        records.offsets.append(self._write(data))

    def _write(self, data: bytes) -> int:
        if self._stream is None or self._shards[-1] + len(data) > SHARD_BYTES:
            self._close()
            self._stream = (self.part / manifest.shard_name(len(self._shards))).open("wb")
            self._shards.append(0)
            self._sum = hashlib.sha256()
        self._stream.write(data)
        self._sum.update(data)
        self._shards[-1] += len(data)
        self._offset += len(data)
        return self._offset - len(data)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            name = manifest.shard_name(len(self._shards) - 1)
            sync(self.part / name)
            self._sums[name] = self._sum.hexdigest()

    def finish(self, allow_bad: bool) -> Manifest:
        self._close()
        refuse(self._bad, allow_bad)
        check_readable(self.listing.name, self.listing.classes, {split: one.labels for split, one in self._records.items()})
        for split, records in self._records.items():
            records.offsets.append(self._offset if split == "test" else (self._records["test"].offsets or [self._offset])[0])
        train = self._records["train"]
        order, held = validation_order(train, set(self.listing.files["train"][: self.listing.held_out or 0]))
        digests = self.part / manifest.DIGESTS
        digests.write_bytes(self._digests)
        sync(digests)
        self._sums[digests.name] = sha256_file(digests)
        result = Manifest(
            digest=self._digest.hexdigest(),
            classes=self.listing.classes,
            shape=None if self.listing.shape is None else list(self.listing.shape),
            shards=self._shards,
            sums=self._sums,
            train=train,
            test=self._records["test"],
            split_seed=stratified.SPLIT_SEED,
            validation_order=order.tolist(),
            excluded=self._bad,
            held_out=held,
        )
        return _save(result, self.part)


def validation_order(train: Records, held: set[str]) -> tuple[np.ndarray, int | None]:
    """Training images in the order in which they are held out, and how many the dataset itself sets aside."""
    labels = np.asarray(train.labels)
    if not held:
        return stratified_order(labels, stratified.SPLIT_SEED), None
    inside = np.array([name in held for name in train.files])
    parts = [np.flatnonzero(inside), np.flatnonzero(~inside)]
    ordered = [part[stratified_order(labels[part], stratified.SPLIT_SEED)] for part in parts]
    return np.concatenate(ordered), len(parts[0])


def _save(manifest: Manifest, folder: Path) -> Manifest:
    """Write the manifest into its folder, last: a folder with a manifest is complete. Return it with its digest."""
    if manifest.table is None:
        content = {key: value for key, value in dataclasses.asdict(manifest).items() if key not in ("excluded", "sha256", "table")}
        write_json(folder / FILE, {"format": FORMAT, **content})
    else:
        content = {key: getattr(manifest, key) for key in TABLE_KEYS}
        write_json(folder / FILE, {"format": TABLE_FORMAT, **content, "table": manifest.table.to_json()})
    return dataclasses.replace(manifest, sha256=hashlib.sha256((folder / FILE).read_bytes()).hexdigest())
