"""Files that carry their digest: told whole from damaged, whatever happened to their bytes."""

import os
import subprocess
import sys
from pathlib import Path

import lockstep_sealed
import numpy as np
import pytest

from tests.unit.samples import flip_a_bit, write_state
from trainer.host import sealed_files


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "state" / "step-000000010.npz"
    write_state(made, "x" * 5000)
    return made


def test_whole_file_is_npz_like_any_other(path):
    assert sealed_files.damage(path) == ""
    assert sealed_files.has_digest(path)
    with np.load(path) as stored:
        assert str(stored["text"]) == "x" * 5000


def test_any_bit_that_differs_is_noticed(path):
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        assert sealed_files.damage(path), place


@pytest.mark.parametrize("change", [*(slice(length) for length in (0, 1, 21, 22, 500, -1, -64, -200)), b"0"], ids=str)
def test_torn_and_added_bytes_are_noticed(path, change):
    whole = path.read_bytes()
    path.write_bytes(whole + change if isinstance(change, bytes) else whole[change])
    assert sealed_files.damage(path)


def test_unreadable_archive_is_no_state(path):
    path.write_bytes(b"weights" * 100)
    assert sealed_files.damage(path).startswith("it is no complete file")
    path.unlink()
    assert sealed_files.damage(path) == "it can't be read: No such file or directory"


def test_older_file_is_checked_by_its_checksums(path):
    np.savez(path, text=np.array("x" * 5000))
    assert not sealed_files.has_digest(path)
    assert sealed_files.damage(path) == ""
    flip_a_bit(path)
    assert sealed_files.damage(path)


def test_archive_that_grows_is_refused(path):
    np.savez_compressed(path, text=np.zeros(10_000_000))
    assert sealed_files.damage(path) == "its checksums differ"


def test_newest_whole_one_is_found_with_faults(path):
    """The newest whole one and what is wrong with newer ones."""
    folder = path.parent
    assert sealed_files.newest_whole(folder.parent / "none") == ("", {})
    for step in (9, 11, 12):
        write_state(folder / f"step-{step:09d}.npz")
    (folder / "step-000000013.npz.part").touch()
    assert sealed_files.newest_whole(folder) == ("step-000000012.npz", {})
    for step in (11, 12):
        flip_a_bit(folder / f"step-{step:09d}.npz")
    damaged = dict.fromkeys(("step-000000012.npz", "step-000000011.npz"), "its digest differs")
    assert sealed_files.newest_whole(folder) == ("step-000000010.npz", damaged)
    assert sealed_files.put_aside(folder / "step-000000012.npz") == str(folder.parent / "damaged" / "state-step-000000012.npz")
    assert sealed_files.names(folder) == ["step-000000009.npz", "step-000000010.npz", "step-000000011.npz"]


def test_what_is_no_file_is_damage(path):
    folder = path.parent
    os.mkfifo(folder / "step-000000011.npz")
    (folder / "step-000000012.npz").symlink_to(path.name)
    (folder / "step-000000013.npz").mkdir()
    name, broken = sealed_files.newest_whole(folder)
    assert name == path.name
    assert list(broken) == ["step-000000013.npz", "step-000000012.npz", "step-000000011.npz"]
    assert broken["step-000000011.npz"] == "it can't be read: Not a regular file"


def test_hosts_run_the_very_same_file():
    assert Path(lockstep_sealed.__file__).read_bytes() == Path(sealed_files.__file__).read_bytes()
    unneeded = "import sys; sys.modules.update(numpy=None, tensorflow=None, yaml=None); import lockstep_sealed"
    environment = {"PYTHONPATH": str(Path(lockstep_sealed.__file__).parent)}
    assert subprocess.run([sys.executable, "-c", unneeded], env=environment, check=False).returncode == 0
