"""Folders on a node's own disk, made once from a published dataset: complete or absent, and used again while nobody touches them."""

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from trainer.common.files import FOLDER, read_json, stamp, sync, write_json

Progress = Callable[[int, int], None]
"""Takes the number of examples that are done, and of all."""
RECORD = "cache.json"
"""File that records a folder's source, and the stamps of its files."""


def once(folder: Path, sha256: str, build: Callable[[Path], None]) -> None:
    """Build a folder from the dataset with that manifest digest, unless it is there as it was built; `build` fills an empty one.

    Processes of one host that share the folder's parent build it once: the others wait.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir() and not _untouched(folder, sha256):
            print(f"{folder} was changed since it was built; it is built again", flush=True)
            shutil.rmtree(folder)
        if not folder.is_dir():
            _build(folder, sha256, build)


def _build(folder: Path, sha256: str, build: Callable[[Path], None]) -> None:
    """Fill a folder beside `folder`, which takes its name when that succeeds; leftovers of killed builds are removed."""
    prefix = f".part-{folder.name}-"
    for stale in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix, ignore_cleanup_errors=True) as temporary:
        part = Path(temporary)
        build(part)
        part.chmod(FOLDER)
        for path in part.iterdir():
            sync(path)
        write_json(part / RECORD, _record(part, sha256))
        sync(part)
        part.rename(folder)
        sync(folder.parent)


def _untouched(folder: Path, sha256: str) -> bool:
    """Return whether a folder was built from this dataset and is unchanged, by its files' sizes and times."""
    try:
        return bool(read_json(folder / RECORD) == _record(folder, sha256))
    except (OSError, ValueError):
        return False


def _record(folder: Path, sha256: str) -> dict[str, object]:
    files = {path.name: stamp(path) for path in sorted(folder.iterdir()) if path.name != RECORD}
    return {"manifest": sha256, "files": files}
