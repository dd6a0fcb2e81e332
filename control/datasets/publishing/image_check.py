"""Image files that can't be read: each is decoded once, before a host is touched, and what came of it is kept until the dataset changes."""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from control.datasets.listing.registry import Listing, Source
from trainer.common.errors import DatasetError
from trainer.common.files import read_json, write_json
from trainer.common.safe_text import printable
from trainer.data.feeder import in_order
from trainer.data.images import decode
from trainer.data.manifest import SPLITS

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

_reader: Source | None = None


def checked(source: Source, listing: Listing, packs: Path, allow_bad: bool, progress: Progress) -> tuple[Listing, list[list[str]]]:
    """The listing without images that can't be read, and name and reason of each; decodes all, unless this source was checked before.

    Args:
        source: opened, and scanned.
        listing: what it lists.
        packs: folder of published datasets, where the result is kept.
        allow_bad: whether images may be left out.
        progress: called with the number of images checked so far, and their total.

    Raises:
        DatasetError: which images can't be read, unless they may be left out; or a class that has none left.
    """
    if listing.table is not None or listing.shape is not None:
        return listing, []
    found = kept(listing, packs)
    if found is None:
        found = _errors(source, listing, progress)
        # A file that may not be read now may be so later, and looks as it did.
        if allow_bad or not found:
            _file(listing, packs).parent.mkdir(parents=True, exist_ok=True)
            write_json(_file(listing, packs), found)
    bad = [[name, why] for split in SPLITS for name, why in found.get(split, {}).items()]
    refuse(bad, allow_bad)
    return (_without(listing, found) if bad else listing), bad


def _errors(source: Source, listing: Listing, progress: Progress) -> Errors:
    total, found = sum(map(len, listing.files.values())), Errors()
    for done, (split, number, (_, why)) in enumerate(records(source, listing, keeps=False), 1):
        if why is not None:
            found.setdefault(split, {})[listing.files[split][number]] = why
        if done % CHUNK == 0 or done == total:
            progress(done, total)
    return found


def kept(listing: Listing, packs: Path) -> Errors | None:
    """Earlier result of `checked` for this unchanged source; None if there is none."""
    return dict(read_json(_file(listing, packs))) if _file(listing, packs).is_file() else None


def _without(listing: Listing, found: Errors) -> Listing:
    left = {split: [at for at, name in enumerate(names) if name not in found.get(split, {})] for split, names in listing.files.items()}
    files = {split: [listing.files[split][at] for at in numbers] for split, numbers in left.items()}
    labels = {split: [listing.labels[split][at] for at in numbers] for split, numbers in left.items()}
    check_classes(listing.name, listing.classes, labels)
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


def check_classes(name: str, classes: list[str], labels: dict[str, list[int]]) -> None:
    """Refuse a class of which a split has no readable image."""
    for split in SPLITS:
        there = set(labels[split])
        for label, one in enumerate(classes):
            if label not in there:
                raise DatasetError(f"dataset {name}: class {split}/{printable(one)} has no readable image")


def records(
    source: Source, listing: Listing, known: Errors | None = None, keeps: bool = True
) -> Iterator[tuple[str, int, tuple[bytes, str | None]]]:
    """Split, number, bytes and error of each record, in order; image files are read on all cores.

    Args:
        source: opened, and scanned.
        listing: what it lists.
        known: what can't be read; by default each image is decoded to find out.
        keeps: whether the bytes of image files are wanted.
    """
    for split in SPLITS:
        total = len(listing.files[split])
        if listing.shape is not None:
            for number in range(total):
                yield split, number, (source.read(split, number), None)
            continue
        wrong = None if known is None else [known.get(split, {}).get(name) for name in listing.files[split]]
        chunks = [
            _Chunk(split, start, min(start + CHUNK, total), None if wrong is None else wrong[start : start + CHUNK], keeps)
            for start in range(0, total, CHUNK)
        ]
        with ProcessPoolExecutor(os.cpu_count(), initializer=_keep_reader, initargs=(source,)) as pool:
            read = itertools.chain.from_iterable(in_order(pool, _read, chunks, AHEAD * (os.cpu_count() or 1)))
            yield from ((split, number, record) for number, record in enumerate(read))


def _keep_reader(source: Source) -> None:
    global _reader  # noqa: PLW0603 - one source for each pool process
    _reader = source


class _Chunk(NamedTuple):
    """Images that are read together; `wrong`: why each can't be, if that is known."""

    split: str
    start: int
    stop: int
    wrong: list[str | None] | None
    keeps: bool


def _read(chunk: _Chunk) -> list[tuple[bytes, str | None]]:
    known = chunk.wrong or [None] * (chunk.stop - chunk.start)
    decodes = chunk.wrong is None
    tried = [
        (b"", why) if why is not None else _one(chunk.split, index, decodes)
        for index, why in zip(range(chunk.start, chunk.stop), known, strict=True)
    ]
    return tried if chunk.keeps else [(b"", why) for _, why in tried]


def _one(split: str, index: int, decodes: bool) -> tuple[bytes, str | None]:
    assert _reader is not None
    try:
        data = _reader.read(split, index)
        if decodes:
            decode(data)
    except OSError as error:
        return b"", error.strerror or str(error)
    except ValueError as error:
        return b"", str(error)
    return data, None


def _file(listing: Listing, packs: Path) -> Path:
    key = hashlib.sha256(f"{listing.name}\0{listing.fingerprint}\0{READING}".encode()).hexdigest()
    return packs / "index" / f"errors-{key[:16]}.json"
