"""Datasets as distributed, rewritten as TFRecords."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from control.datasets.listing import unfinished
from control.datasets.listing.registry import fingerprint
from control.datasets.sources import cifar10, tfrecords
from trainer.common.errors import DatasetError
from trainer.common.files import FOLDER, read_json, sha256_file, write_json
from trainer.common.suggest import nearest

KINDS = ("cifar10",)
FILES = {"train": "train.tfrecords", "validation": "validation.tfrecords", "eval": "eval.tfrecords"}
Progress = Callable[[str], None]


def check_kind(kind: str) -> None:
    """Refuse a source that can't be converted, with a DatasetError that names what can be."""
    if kind not in KINDS:
        raise DatasetError(f"source={kind}: can't be converted{nearest(kind, KINDS)}; it must be one of: {', '.join(KINDS)}")


def convert(kind: str, path: Path, digest: str | None, out: Path, progress: Progress, check: bool = False) -> dict[str, Any]:
    """Write `train`, `validation` and `eval` as TFRecords, and `dataset.json`, into a folder that is complete or absent.

    Features: `image`, 3,072 bytes by channels, rows and columns; `label`, an index into the classes. The training images are in
    random order.

    Args:
        kind: `cifar10`.
        path: of an archive or a folder.
        digest: expected digest of the archive, as in `cifar10.read_splits`.
        out: folder to write.
        progress: called with a line of progress.
        check: only read the source, and refuse what a conversion would refuse.

    Returns:
        Content of `dataset.json`, with `changed`: false if the same was converted before.
    """
    origin = _origin(path)
    earlier = _earlier(origin, out)
    if earlier is not None:
        return earlier
    splits = cifar10.read_splits(path, digest, lambda images, total: progress(f"read {images:,} of {total:,} images"))
    if check:
        return {"files": {FILES[name]: {"records": len(split.labels)} for name, split in splits.items()}, "changed": True}
    with unfinished.folder_in(out.parent) as part:
        files = {}
        for name, split in splits.items():
            progress(f"writing {FILES[name]}")
            files[FILES[name]] = _written(part / FILES[name], split)
        layout = {"classes": cifar10.CLASSES, "shape": list(cifar10.SHAPE), "layout": "CHW"}
        about = {"source": kind, "origin": origin, **layout, "files": files}
        write_json(part / tfrecords.ABOUT, about)
        part.chmod(FOLDER)
        part.rename(out)
    return {**about, "changed": True}


def _earlier(origin: dict[str, Any], out: Path) -> dict[str, Any] | None:
    """A complete earlier conversion of this very source, with `changed`: false; DatasetError if the folder holds something else."""
    file = out / tfrecords.ABOUT
    about = dict(read_json(file)) if file.is_file() else {}
    files = about.get("files", {})
    complete = files and all((out / name).is_file() and (out / name).stat().st_size == known["bytes"] for name, known in files.items())
    if complete and about.get("origin") == origin:
        return {**about, "changed": False}
    if out.exists():
        ours = complete and "origin" in about
        why = "converted from another source, or that one has changed" if ours else "and not written by this command"
        raise DatasetError(f"out={out}: already exists, {why}; remove it, or give another folder: -e out=FOLDER")
    return None


def _written(path: Path, split: cifar10.Split) -> dict[str, Any]:
    """Write a file and read it back; its record."""
    tfrecords.write_records(path, split.images, split.labels)
    count, records = sum(1 for _ in tfrecords.read_records(path)), len(split.labels)
    if count != records:
        raise DatasetError(f"{path.name}: {count:,} records were read back, {records:,} were written; is the disk full?")
    return {"records": records, "bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _origin(path: Path) -> dict[str, Any]:
    """The identity of a source, without reading it."""
    if not path.exists():
        raise DatasetError(f"path={path}: no such file or folder; give {cifar10.LAYOUTS}")
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {"path": str(path.resolve()), "fingerprint": fingerprint(files)}
