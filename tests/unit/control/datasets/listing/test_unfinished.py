"""Folders of what is being written."""

import os
import subprocess
import sys
import time

import pytest

from control.datasets.listing import unfinished

KILLED = """
import os, signal, sys
from pathlib import Path
from control.datasets.listing import unfinished
with unfinished.folder_in(Path(sys.argv[1])) as folder:
    (folder / "data").touch()
    os.kill(os.getpid(), signal.SIGTERM)
"""


def make_old(folder):
    os.utime(folder, (time.time() - 2 * unfinished.YOUNG_S,) * 2)


def test_folder_of_killed_process_is_removed(tmp_path):
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False).returncode < 0
    (left,) = tmp_path.iterdir()
    with unfinished.folder_in(tmp_path):
        assert left.is_dir(), "it may be a moment old, and not locked yet"
    make_old(left)
    with unfinished.folder_in(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_folder_that_is_written_to_stays(tmp_path):
    with unfinished.folder_in(tmp_path) as one:
        make_old(one)
        with unfinished.folder_in(tmp_path):
            assert one.is_dir()


def test_folder_is_gone_unless_it_was_moved(tmp_path):
    with unfinished.folder_in(tmp_path / "new") as folder:
        folder.rename(tmp_path / "kept")
    with pytest.raises(KeyError), unfinished.folder_in(tmp_path / "new"):
        raise KeyError
    assert (tmp_path / "kept").is_dir()
    assert list((tmp_path / "new").iterdir()) == []


def test_links_are_left_alone(tmp_path):
    (tmp_path / "outside").mkdir()
    make_old(tmp_path / "outside")
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs/.part-x").symlink_to(tmp_path / "outside")
    with unfinished.folder_in(tmp_path / "packs"):
        assert (tmp_path / "outside").is_dir()
