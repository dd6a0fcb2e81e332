"""Folders of what is being written: each is moved to its place when it is complete, and removed if its writer fails or is killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = ".part-"
YOUNG_S = 60.0
"""A folder is locked a moment after it is made."""


@contextlib.contextmanager
def folder_in(parent: Path) -> Iterator[Path]:
    """Make an empty folder in `parent` that is gone afterwards, unless it was moved; first remove those of killed processes."""
    parent.mkdir(parents=True, exist_ok=True)
    _clear(parent)
    with tempfile.TemporaryDirectory(dir=parent.resolve(), prefix=PREFIX, ignore_cleanup_errors=True) as made:
        handle = os.open(made, os.O_RDONLY)
        try:
            # Some network file systems lock no folder: then none is removed, either.
            with contextlib.suppress(OSError):
                _lock(handle)
            yield Path(made)
        finally:
            os.close(handle)


def _lock(handle: int) -> None:
    """Show that a process writes a folder; the kernel takes the lock back when it dies. OSError if another has it."""
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _clear(parent: Path) -> None:
    for left in parent.glob(f"{PREFIX}*"):
        # It may be another user's, or gone, or be written to: then it is locked.
        with contextlib.suppress(OSError):
            if left.is_dir() and not left.is_symlink() and time.time() - left.stat().st_mtime > YOUNG_S:
                handle = os.open(left, os.O_RDONLY)
                try:
                    _lock(handle)
                    shutil.rmtree(left, ignore_errors=True)
                finally:
                    os.close(handle)
