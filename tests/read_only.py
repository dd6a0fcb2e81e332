"""A folder that is read-only for a while, as on a disk that had an error."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Let nobody write below a folder by a new path; skips without root."""
    mounting = ["mount", "--bind", str(folder), str(folder)]
    if os.geteuid() != 0 or subprocess.run(mounting, check=False, capture_output=True).returncode != 0:
        pytest.skip("a read-only folder needs root")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
