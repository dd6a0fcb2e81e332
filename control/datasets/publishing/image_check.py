"""Image files that can't be read: each is decoded once, before a host is touched, and what came of it is kept until the dataset changes."""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from control.datasets.listing.registry import Listing, Source
from trainer.common.errors import DatasetError
from trainer.common.files import read_json, write_json
from trainer.common.safe_text import printable
from trainer.data.feeder import in_order
from trainer.data.images import decode
from trainer.data.manifest import SPLITS
from trainer.host.process import die_with_parent

CHUNK = 256
AHEAD = 4
"""Chunks per core that are being read or waiting to be taken: a slow disk must not fill the memory."""
READING = 2
"""Increased when a source is read differently: datasets published before are then published again."""
SHOWN = 20
"""Images that a message names."""
Progress = Callable[[int, int], None]
Errors = dict[str, dict[str, str]]
"""By split and name, why an image can't be read."""

Record = tuple[bytes, str | None]
"""A record's bytes, and why it can't be read."""

_reader: Source | None = None


@dataclass(frozen=True)
class ImageCheck:
    """The images of a source, and which of them can't be read."""

    source: Source
    """Opened, and scanned."""
    listing: Listing
    packs: Path
    """Folder of published datasets, where the result is kept."""

    def readable(self, allow_bad: bool, progress: Progress) -> tuple[Listing, list[list[str]]]:
        """The listing without images that can't be read, and name and reason of each; decodes all, unless that was done before.

        Args:
            allow_bad: whether images may be left out.
            progress: called with the number of images checked so far, and their total.

        Raises:
            DatasetError: which images can't be read, unless they may be left out; or a class that has none left.
        """
        if self.listing.shape is not None and self.listing.fingerprint:
            for split in SPLITS:
                # The source then reads its whole file of the split. An example dataset that is not here yet has no fingerprint.
                self.source.read(split, 0)
        if self.listing.table is not None or self.listing.shape is not None:
            return self.listing, []
        found = self.known
        if found is None:
            found = self._errors(progress)
            # A file that may not be read now may be so later, and looks as it did.
            if allow_bad or not found:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._file, found)
        bad = [[name, why] for split in SPLITS for name, why in found.get(split, {}).items()]
        refuse(bad, allow_bad)
        return (_without(self.listing, found) if bad else self.listing), bad

    @property
    def known(self) -> Errors | None:
        """Earlier result for this unchanged source; None if there is none."""
        return dict(read_json(self._file)) if self._file.is_file() else None

    @property
    def _file(self) -> Path:
        key = hashlib.sha256(f"{self.listing.name}\0{self.listing.fingerprint}\0{READING}".encode()).hexdigest()
        return self.packs / "index" / f"errors-{key[:16]}.json"

    def _errors(self, progress: Progress) -> Errors:
        total, found = sum(map(len, self.listing.files.values())), Errors()
        for done, (split, number, (_, why)) in enumerate(self.records(None, keeps=False), 1):
            if why is not None:
                found.setdefault(split, {})[self.listing.files[split][number]] = why
            if done % CHUNK == 0 or done == total:
                progress(done, total)
        return found

    def records(self, known: Errors | None, keeps: bool = True) -> Iterator[tuple[str, int, Record]]:
        """Split, number, bytes and error of each record, in order; image files are read on all cores.

        Args:
            known: what can't be read; None: each image is decoded to find out.
            keeps: whether the bytes of image files are wanted.
        """
        for split, names in ((split, self.listing.files[split]) for split in SPLITS):
            if self.listing.shape is not None:
                yield from ((split, number, (self.source.read(split, number), None)) for number in range(len(names)))
                continue
            wrong = None if known is None else [known.get(split, {}).get(name) for name in names]
            chunks = [
                _Chunk(split, range(start, min(start + CHUNK, len(names))), None if wrong is None else wrong[start : start + CHUNK], keeps)
                for start in range(0, len(names), CHUNK)
            ]
            with ProcessPoolExecutor(os.cpu_count(), initializer=_keep_reader, initargs=(self.source, os.getpid())) as pool:
                read = itertools.chain.from_iterable(in_order(pool, _read, chunks, AHEAD * (os.cpu_count() or 1)))
                yield from ((split, number, record) for number, record in enumerate(read))


def _without(listing: Listing, found: Errors) -> Listing:
    left = {split: [at for at, name in enumerate(names) if name not in found.get(split, {})] for split, names in listing.files.items()}
    files = {split: [listing.files[split][at] for at in numbers] for split, numbers in left.items()}
    labels = {split: [listing.labels[split][at] for at in numbers] for split, numbers in left.items()}
    check_readable(listing.name, listing.classes, labels)
    held = listing.held_out and sum(at < listing.held_out for at in left["train"])
    return dataclasses.replace(listing, files=files, labels=labels, held_out=held)


def refuse(bad: list[list[str]], allow_bad: bool) -> None:
    """Refuse images that can't be read (name and reason of each), unless they may be left out."""
    if not bad or allow_bad:
        return
    lines = [f"{len(bad)} image{'s' if len(bad) > 1 else ''} can't be read:"]
    lines += [f"  {printable(name)}: {printable(reason)}" for name, reason in bad[:SHOWN]]
    lines += [f"  ... and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
    raise DatasetError("\n".join([*lines, "  Fix or remove them, or leave them out with -e set=data.allow_bad_images=true."]))


def check_readable(name: str, classes: list[str], labels: dict[str, list[int]]) -> None:
    """Refuse a class of which a split has no readable image."""
    for split in SPLITS:
        if missing := sorted({*range(len(classes))}.difference(labels[split])):
            raise DatasetError(f"dataset {name}: class {split}/{printable(classes[missing[0]])} has no readable image")


def _keep_reader(source: Source, parent: int) -> None:
    global _reader  # noqa: PLW0603 - one source for each pool process
    die_with_parent(parent)
    _reader = source


class _Chunk(NamedTuple):
    """Images that are read together; `wrong`: why each can't be, if that is known."""

    split: str
    numbers: range
    wrong: list[str | None] | None
    keeps: bool


def _read(chunk: _Chunk) -> list[Record]:
    decodes = chunk.wrong is None
    known = chunk.wrong or itertools.repeat(None)
    tried = [_one(chunk.split, number, decodes) if why is None else (b"", why) for number, why in zip(chunk.numbers, known, strict=False)]
    return tried if chunk.keeps else [(b"", why) for _, why in tried]


def _one(split: str, number: int, decodes: bool) -> Record:
    assert _reader is not None
    try:
        data = _reader.read(split, number)
        if decodes:
            decode(data)
    except OSError as error:
        return b"", error.strerror or str(error)
    except ValueError as error:
        return b"", str(error)
    return data, None
