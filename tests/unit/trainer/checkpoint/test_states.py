"""Training states on a worker's disk: a damaged one is noticed, named, put aside, and the one before it is used."""

import io
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.unit.samples import flip_a_bit
from trainer.checkpoint.states import Progress, States
from trainer.host import sealed_files
from trainer.network.host_array import HostArray


@pytest.fixture
def folder(tmp_path):
    """A folder with the states of steps 4 and 8."""
    made = States(tmp_path / "state", 2)
    for step in (4, 8):
        made.write([np.full((3, 2), step, np.float32)], Progress(step=step))
    return tmp_path / "state"


def replaced(path, entry, content):
    """Give a state's archive another entry, and a digest that is right for it."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (entries | {entry: content}).items():
            archive.writestr(name, data)
    sealed_files.seal(path)


def announced(shape):
    """The start of an array in NumPy's format, without most of its numbers."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"shape": shape, "fortran_order": False, "descr": "<f4"})
    return stream.getvalue() + bytes(24)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def become_a_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def become_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def become_a_folder(path):
    path.unlink()
    path.mkdir()


def announce(shape):
    return lambda path: replaced(path, "0000.npy", announced(shape))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (flip_a_bit, "its digest differs"),
        (cut, "its checksums differ|no complete file|its digest differs"),
        (lambda path: path.write_bytes(b""), "no complete file"),
        (become_a_link, "Too many levels of symbolic links"),
        (become_a_pipe, "Not a regular file"),
        (become_a_folder, "Not a regular file"),
        (announce((10**13,)), r"0000.npy announces an array of shape \(10000000000000,\)"),
        (announce((2**40, 2**40)), "which it does not hold"),
        (announce((-1,)), "which it does not hold"),
        (lambda path: replaced(path, "progress.npy", b"no array"), "magic string"),
    ],
    ids=["bit", "cut", "empty", "link", "pipe", "folder", "long", "longer", "negative", "no-array"],
)
def test_damaged_state_gives_way_to_one_before(folder, harm, reason):
    path, heard = folder / "step-000000008.npz", []
    harm(path)
    made = States(folder, 2, heard.append)
    assert [step for step, _ in made.readable()] == [4]
    (warning,) = heard
    aside = folder.parent / "damaged" / "state-step-000000008.npz"
    assert warning.startswith(f"{path} is damaged (")
    assert warning.endswith(f"left out, and kept as {aside}")
    assert re.search(reason, warning), warning
    assert os.path.lexists(aside)
    arrays, progress = made.load(4, [HostArray((3, 2))])
    assert (arrays[0].tolist(), progress.step) == ([[4.0, 4.0]] * 3, 4)


def test_entry_larger_than_its_file_is_damage(folder):
    """An entry that claims more bytes than the file has is damage.

    Right digest, forged table of contents: nothing of that size is reserved.
    """
    path, heard = folder / "step-000000008.npz", []
    data = bytearray(path.read_bytes()[: -sealed_files.DIGITS - len(sealed_files.MARK)])
    place = data.index(b"PK\x01\x02")
    data[place + 24 : place + 28] = (2**31).to_bytes(4, "little")
    data[-2:] = b"\0\0"
    path.write_bytes(data)
    sealed_files.seal(path)
    made = States(folder, 2, heard.append)
    assert [step for step, _ in made.readable()] == [4]
    assert "announces 2,147,483,648 bytes" in heard[0]


def test_state_is_on_disk_before_older_ones_go(folder, monkeypatch):
    done, fsync = [], os.fsync

    def spy(handle):
        fsync(handle)
        done.append((os.readlink(f"/proc/self/fd/{handle}"), sorted(path.name for path in folder.glob("step-*"))))

    monkeypatch.setattr(os, "fsync", spy)
    States(folder, 1).write([np.zeros((3, 2), np.float32)], Progress(step=12))
    before = ["step-000000004.npz", "step-000000008.npz"]
    (written, then), (synced, after) = done
    assert (Path(written).name.startswith(".part-"), then) == (True, before)
    assert (synced, after) == (str(folder), [*before, "step-000000012.npz"])


def test_folder_of_states_name_is_in_nobodys_way(folder):
    made = States(folder, 1)
    (folder / "step-000000012.npz").mkdir()
    assert [step for step, _ in made.readable()] == [8, 4]
    assert made.files.free(8)
    (folder / "step-000000002.npz").mkdir()
    made.files.tidy(8)
    assert (folder.parent / "damaged" / "state-step-000000012.npz").is_dir()
    assert not made.files.free(8)
    assert made.files.steps() == [2, 8]
