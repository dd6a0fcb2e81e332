"""Publish a dataset: check every image once, write it into a few packed files and a manifest.

A published dataset is a folder named by its digest. Publishing the same source again reads
nothing but names, sizes and times.
"""

import dataclasses
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np

from trainer.data import fashion_mnist, folder, idx, manifest, own, tfrecords  # noqa: F401 - sources register themselves
from trainer.data.images import decode
from trainer.data.manifest import Manifest, Records
from trainer.data.partition import stratified_order
from trainer.data.sources import Listing, Source
from trainer.errors import DatasetError
from trainer.files import read_json, write_json

SHARD_BYTES = 256 * 2**20
CHUNK = 256
SHOWN = 20
Progress = Callable[[int, int], None]
Checked = tuple[bytes, str | None]

_reader: Source | None = None


def published(listing: Listing, packs: Path, allow_bad: bool) -> str | None:
    """Digest under which this very source, unchanged since, is already published in `packs`."""
    entry = _index(listing, packs, allow_bad)
    if not entry.is_file():
        return None
    digest = str(read_json(entry)["digest"])
    return digest if (packs / short(digest) / manifest.FILE).is_file() else None


def short(digest: str) -> str:
    """The part of a digest that names folders."""
    return digest[:16]


def publish(source: Source, kind: str, packs: Path, allow_bad: bool, progress: Progress) -> Manifest:
    """Write `source` under `packs/<digest>/`, unless it is there already.

    What was left out is kept for each source: two sources that differ in nothing else share a digest.

    Raises:
        DatasetError: images that can't be read (named) and `allow_bad` is not set, or a class
            that has none left.
    """
    listing = source.scan()
    entry = _index(listing, packs, allow_bad)
    if published(listing, packs, allow_bad) is None:
        packed = _pack(source, kind, listing, packs, allow_bad, progress)
        write_json(entry, {"digest": packed.digest, "excluded": packed.excluded})
    known = read_json(entry)
    found = manifest.load(packs / short(known["digest"]))
    return dataclasses.replace(found, excluded=known.get("excluded", found.excluded))


def _index(listing: Listing, packs: Path, allow_bad: bool) -> Path:
    key = hashlib.sha256(f"{listing.name}\0{listing.fingerprint}\0{allow_bad}".encode()).hexdigest()
    return packs / "index" / f"{short(key)}.json"


def _pack(source: Source, kind: str, listing: Listing, packs: Path, allow_bad: bool, progress: Progress) -> Manifest:
    packs.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=packs, prefix=".part-"))
    try:
        writer = _Writer(part, kind, listing)
        for done, (split, number, record) in enumerate(_checked(source, listing), 1):
            writer.add(split, number, record)
            if done % CHUNK == 0:
                progress(done, writer.total)
        progress(writer.total, writer.total)
        result = writer.finish(allow_bad)
        part.chmod(0o755)
        _into_place(part, packs / short(result.digest))
        return result
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _into_place(part: Path, place: Path) -> None:
    if (place / manifest.FILE).is_file():
        return
    shutil.rmtree(place, ignore_errors=True)
    part.rename(place)


def _checked(source: Source, listing: Listing) -> Iterator[tuple[str, int, Checked]]:
    """Each record's bytes and what is wrong with it, in order; image files are decoded by all cores."""
    for split in ("train", "test"):
        total = len(listing.files[split])
        if listing.shape is not None:
            for number in range(total):
                yield split, number, (source.read(split, number), None)
            continue
        chunks = [(split, start, min(start + CHUNK, total)) for start in range(0, total, CHUNK)]
        with ProcessPoolExecutor(os.cpu_count(), initializer=_keep_reader, initargs=(source,)) as pool:
            for chunk, records in zip(chunks, pool.map(_check_chunk, chunks), strict=True):
                yield from ((split, chunk[1] + offset, record) for offset, record in enumerate(records))


def _keep_reader(source: Source) -> None:
    global _reader  # noqa: PLW0603 - one source for each pool process
    _reader = source


def _check_chunk(chunk: tuple[str, int, int]) -> list[Checked]:
    split, start, stop = chunk
    assert _reader is not None
    return [_check(_reader, split, index) for index in range(start, stop)]


def _check(source: Source, split: str, index: int) -> Checked:
    try:
        data = source.read(split, index)
        decode(data)
        return data, None
    except OSError as error:
        return b"", error.strerror or str(error)
    except ValueError as error:
        return b"", str(error)


class _Writer:
    """Appends records to shards and remembers where they went."""

    def __init__(self, part: Path, kind: str, listing: Listing):
        self.part, self.kind, self.listing = part, kind, listing
        self.total = sum(len(files) for files in listing.files.values())
        self._records = {split: Records([], [], []) for split in ("train", "test")}
        self._bad: list[list[str]] = []
        self._shards: list[int] = []
        self._offset = 0
        self._stream: BinaryIO | None = None
        self._digest = hashlib.sha256("\0".join(listing.classes).encode() + repr(listing.shape).encode())

    def add(self, split: str, number: int, record: Checked) -> None:
        data, wrong = record
        name, label = self.listing.files[split][number], self.listing.labels[split][number]
        if wrong is not None:
            self._bad.append([name, wrong])
            return
        content = hashlib.sha256(data).hexdigest()
        self._digest.update(os.fsencode(f"{split}\0{label}\0{name}\0{content}\n"))
        records = self._records[split]
        records.files.append(name)
        records.labels.append(label)
        records.offsets.append(self._write(data))

    def _write(self, data: bytes) -> int:
        if self._stream is None or self._shards[-1] + len(data) > SHARD_BYTES:
            self._close()
            self._stream = (self.part / manifest.shard_name(len(self._shards))).open("wb")
            self._shards.append(0)
        self._stream.write(data)
        self._shards[-1] += len(data)
        self._offset += len(data)
        return self._offset - len(data)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
            self._stream = None

    def finish(self, allow_bad: bool) -> Manifest:
        self._close()
        if self._bad and not allow_bad:
            raise DatasetError(_bad_images(self._bad))
        for split, records in self._records.items():
            for label, name in enumerate(self.listing.classes):
                if label not in records.labels:
                    raise DatasetError(f"dataset {self.listing.name}: class {split}/{name} has no readable image")
            records.offsets.append(self._offset if split == "test" else (self._records["test"].offsets or [self._offset])[0])
        train = self._records["train"]
        order, held = _validation_order(train, set(self.listing.files["train"][: self.listing.held_out or 0]))
        result = Manifest(
            name=self.listing.name,
            source=self.kind,
            digest=self._digest.hexdigest(),
            classes=self.listing.classes,
            shape=None if self.listing.shape is None else list(self.listing.shape),
            shards=self._shards,
            train=train,
            test=self._records["test"],
            split_seed=manifest.SPLIT_SEED,
            validation_order=order.tolist(),
            excluded=self._bad,
            held_out=held,
        )
        manifest.save(result, self.part)
        return result


def _validation_order(train: Records, held: set[str]) -> tuple[np.ndarray, int | None]:
    """Training images in the order in which they are held out, and how many the dataset sets aside by itself."""
    labels = np.asarray(train.labels)
    if not held:
        return stratified_order(labels, manifest.SPLIT_SEED), None
    inside = np.array([name in held for name in train.files])
    parts = [np.flatnonzero(inside), np.flatnonzero(~inside)]
    ordered = [part[stratified_order(labels[part], manifest.SPLIT_SEED)] for part in parts]
    return np.concatenate(ordered), len(parts[0])


def _bad_images(bad: list[list[str]]) -> str:
    lines = [f"  {name}: {reason}" for name, reason in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"  ... and {len(bad) - SHOWN} more")
    return (
        f"{len(bad)} image{'s' if len(bad) > 1 else ''} can't be read:\n"
        + "\n".join(lines)
        + "\n  Mend or remove them, or leave them out with -e allow_bad_images=true."
    )
