"""Distributed datasets, rewritten as TFRecords."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from control.datasets import cifar10, tfrecords
from trainer.config import nearest
from trainer.errors import DatasetError
from trainer.files import FOLDER, read_json, sha256_file, write_json

KINDS = ("cifar10",)
FILES = {"train": "train.tfrecords", "validation": "validation.tfrecords", "eval": "eval.tfrecords"}
Progress = Callable[[str], None]


def check_kind(kind: str) -> None:
    """Refuse what can't be converted.

    Raises:
        DatasetError: names what can be.
    """
    if kind not in KINDS:
        raise DatasetError(f"source={kind}: can't be converted{nearest(kind, KINDS)}; it must be one of: {', '.join(KINDS)}")


def convert(kind: str, path: Path, digest: str | None, out: Path, told: Progress) -> dict[str, Any]:
    """Write `train`, `validation` and `eval` as TFRecords, and `dataset.json`, into a folder that is complete or absent.

    Features: `image`, 3,072 bytes by channels, rows and columns; `label`, an index into the classes. The training images are in
    random order.

    Args:
        kind: `cifar10`.
        path: of an archive or a folder.
        digest: expected digest of the archive, as in `cifar10.read`.
        out: folder to write.
        told: receives the progress.

    Returns:
        Content of `dataset.json`, with `changed`: false if the same was converted before.

    Raises:
        DatasetError: nothing is written.
    """
    known = _same(kind, path, out)
    if known is not None:
        return known
    splits = cifar10.read(path, digest, lambda done, total: told(f"read {done:,} of {total:,} images"))
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=out.parent, prefix=".part-"))
    try:
        about: dict[str, Any] = {
            "source": kind,
            "origin": _origin(path),
            "classes": cifar10.CLASSES,
            "shape": list(cifar10.SHAPE),
            "layout": "CHW",
            "files": {},
        }
        for name, split in splits.items():
            told(f"writing {FILES[name]}")
            tfrecords.write(part / FILES[name], split.images, split.labels)
            about["files"][FILES[name]] = _verified(part / FILES[name], len(split.labels))
        write_json(part / tfrecords.ABOUT, about)
        part.chmod(FOLDER)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return {**about, "changed": True}


def looked_at(kind: str, path: Path, digest: str | None, out: Path, told: Progress) -> dict[str, Any]:
    """Like `convert`, without writing: the source is read, and refused if `convert` would refuse it."""
    known = _same(kind, path, out)
    if known is not None:
        return known
    splits = cifar10.read(path, digest, lambda done, total: told(f"read {done:,} of {total:,} images"))
    return {"files": {FILES[name]: {"records": len(split.labels)} for name, split in splits.items()}, "changed": True}


def _same(kind: str, path: Path, out: Path) -> dict[str, Any] | None:
    """An earlier conversion of this very source, with `changed`: false.

    Raises:
        DatasetError: no such source, or the folder holds something else.
    """
    check_kind(kind)
    known, origin = _known(out), _origin(path)
    if known is not None and known["origin"] == origin:
        return {**known, "changed": False}
    if out.exists():
        why = "made from another source, or that one has changed" if known else "and not made by this command"
        raise DatasetError(f"out={out}: it is there already, {why}; remove it, or give another folder: -e out=FOLDER")
    return None


def _verified(path: Path, records: int) -> dict[str, Any]:
    """The record of a file, after reading it back."""
    found = tfrecords.count(path)
    if found != records:
        raise DatasetError(f"{path.name}: {found:,} records were read back, {records:,} were written; is the disk full?")
    return {"records": records, "bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _origin(path: Path) -> dict[str, Any]:
    """The identity of a source, without reading it."""
    if not path.exists():
        raise DatasetError(f"path={path}: no such file or folder; give {cifar10.LAYOUTS}")
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    stamp = hashlib.sha256()
    for file in files:
        stat = file.stat()
        stamp.update(os.fsencode(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\n"))
    return {"path": str(path.resolve()), "fingerprint": stamp.hexdigest()}


def _known(out: Path) -> dict[str, Any] | None:
    """An earlier conversion in that folder, if all of it is still there."""
    path = out / tfrecords.ABOUT
    if not path.is_file():
        return None
    about = dict(read_json(path))
    files = about.get("files", {})
    whole = files and all((out / name).is_file() and (out / name).stat().st_size == file["bytes"] for name, file in files.items())
    return about if whole and "origin" in about else None
