"""Files made in a temporary folder, of which only those that differ are put in place."""

import contextlib
import filecmp
import shutil
from collections.abc import Sequence
from pathlib import Path

from trainer.common.files import replacing


def changes(fresh: Path, folder: Path, stale: Sequence[str] = ()) -> list[str]:
    """Names of files in `fresh` that differ from those in `folder`, and of old files there that match a pattern of `stale`."""
    names = [path.relative_to(fresh).as_posix() for path in fresh.rglob("*") if path.is_file()]
    changed = [name for name in names if not (folder / name).is_file() or not filecmp.cmp(fresh / name, folder / name, shallow=False)]
    return sorted([*changed, *_stale(folder, names, stale)])


def _stale(folder: Path, names: Sequence[str], patterns: Sequence[str]) -> set[str]:
    every = {path.relative_to(folder).as_posix() for pattern in patterns for path in folder.glob(pattern)}
    return every.difference(names)


def put_changed(fresh: Path, folder: Path, stale: Sequence[str] = ()) -> list[str]:
    """Make these changes, each file whole; returns their names."""
    changed = changes(fresh, folder, stale)
    # The zip comes last: once it exists, the pages that it holds exist, too.
    for name in sorted(changed, key=lambda name: (name.endswith(".zip"), name)):
        if (fresh / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with replacing(folder / name) as part:
                shutil.copyfile(fresh / name, part)
        else:
            _remove(folder / name, folder)
    return changed


def _remove(path: Path, folder: Path) -> None:
    """Remove a file, and the folders below `folder` that are empty without it."""
    path.unlink()
    for parent in path.parents[: len(path.relative_to(folder).parts) - 1]:
        with contextlib.suppress(OSError):
            parent.rmdir()
