"""The state is written while training goes on, one save at a time; what goes wrong meanwhile is said where it would have been before."""

import errno
import threading

import numpy as np
import pytest

from tests.unit.workers import together, workers
from trainer.checkpoint import states
from trainer.checkpoint.background_save import COPY, PART, STATE, StateSaving
from trainer.checkpoint.states import Memories, Progress, States
from trainer.host import sealed_files
from trainer.network.array_group import digest
from trainer.network.host_array import HostArray
from trainer.rundir.full_disk import Saver

FULL = OSError(errno.ENOSPC, "No space left on device")


class Place:
    """A worker's disk, with what it saves; `variables` are its weights."""

    def __init__(self, folder, worker, memory=False, copy="none"):
        self.heard, self.variables, self.progress = [], [HostArray((2, 2))], Progress(attempt="first")
        self.states = States(folder / "state", 2, self.heard.append)
        kept = [HostArray((3,))] if memory else []
        self.memories = Memories(folder / "memory", worker.member, 2, kept, self.heard.append)
        self.saver = Saver(self.heard.append, lambda: self.saving.free())  # noqa: PLW0108 - there is no `saving` yet
        self.saving = StateSaving(worker, self.states, self.memories, self.saver, 0, copy)

    def train(self, step):
        for array in [*self.variables, *self.memories.memory]:
            array.assign(np.full(array.shape, step, np.float32))
        self.progress.step = step

    def save(self, step):
        self.train(step)
        self.saving.save(lambda: [one.numpy() for one in self.variables], self.progress)

    def saved(self, step):
        self.save(step)
        self.saving.settle()
        return self.saving.complete

    def steps(self):
        return self.states.files.steps(), self.memories.files.steps()


@pytest.fixture
def alone(tmp_path):
    return Place(tmp_path, *workers(1))


@pytest.fixture
def three(tmp_path):
    return [Place(tmp_path / str(worker.member.rank), worker, memory=True) for worker in workers(3)]


@pytest.fixture
def copied(tmp_path):
    """Three with the state on the second, too."""
    return [Place(tmp_path / str(worker.member.rank), worker, memory=True, copy="peer") for worker in workers(3)]


@pytest.fixture
def gate(alone, monkeypatch):
    """Nothing is written before it opens; `written` tells what happens when."""
    opened, write = threading.Event(), alone.states.write

    def waiting(arrays, progress):
        opened.written.append(f"begin {progress.step}")
        assert opened.wait(30)
        write(arrays, progress)
        opened.written.append(f"end {progress.step}")

    opened.written = []
    monkeypatch.setattr(alone.states, "write", waiting)
    yield opened
    opened.set()


def fails(monkeypatch, files, error, times=1000):
    """Let the next writes of these files fail, after most of their bytes are on the disk."""
    seal, left = sealed_files.seal, [error] * times

    def failing(part):
        if part.parent == files.path(0).parent and left:
            raise left.pop()
        seal(part)

    monkeypatch.setattr(sealed_files, "seal", failing)


def test_training_goes_on_while_state_is_written(alone, gate):
    alone.save(1)
    assert alone.saving.busy
    alone.train(2)
    alone.saving.check()
    gate.set()
    alone.saving.settle()
    assert (alone.saving.busy, alone.saving.saved) == (False, 1)
    arrays, progress = alone.states.load(1, alone.variables)
    assert (arrays[0].tolist(), progress.step) == ([[1.0, 1.0]] * 2, 1)


def test_next_save_waits_for_one_under_way(alone, gate):
    alone.save(1)
    second = threading.Thread(target=alone.save, args=(2,))
    second.start()
    gate.set()
    second.join()
    alone.saving.settle()
    assert gate.written == ["begin 1", "end 1", "begin 2", "end 2"]
    assert alone.steps()[0] == [1, 2]


def test_only_complete_save_takes_place_of_older_ones(alone, gate):
    gate.set()
    assert [alone.saved(step) for step in (1, 2)] == [True, True]
    gate.clear()
    alone.save(3)
    assert alone.steps()[0] == [1, 2]
    gate.set()
    alone.saving.settle()
    assert alone.steps()[0] == [2, 3]


@pytest.mark.parametrize("when", ["check", "settle", "save"])
def test_error_in_thread_is_raised_where_training_is(alone, monkeypatch, when):
    fails(monkeypatch, alone.states.files, PermissionError(errno.EACCES, "Permission denied"))
    alone.save(1)
    alone.saving._thread.submit(int).result()
    with pytest.raises(PermissionError, match="Permission denied"):
        alone.save(2) if when == "save" else getattr(alone.saving, when)()


def test_full_disk_warns_once_and_saves_try_again(alone, tmp_path, monkeypatch):
    """On a full disk training goes on with one warning and each save tries again."""
    assert alone.saved(1)
    with monkeypatch.context() as patch:
        fails(patch, alone.states.files, FULL)
        alone.save(2)
        alone.saving._thread.submit(int).result()
        alone.saving.check()
        assert len(alone.heard) == 1
        assert not alone.saved(3)
    assert (alone.steps()[0], alone.saving.saved, list(alone.saver.missing)) == ([1], 1, [STATE])
    (warning,) = alone.heard
    assert warning.startswith(f"the training state is not saved: {alone.states.files.path(2)}: no space left on device (0.0 MB needed")
    assert alone.saved(4)
    assert alone.heard[1:] == ["the disk takes files again: all is saved"]
    assert (alone.steps()[0], alone.saver.missing) == ([1, 4], {})
    assert not list(tmp_path.rglob(".part-*"))


BOTH, PART_ONLY = ([2, 3], [2, 3]), ([], [2, 3])


@pytest.mark.parametrize(
    ("copy", "steps"),
    [("none", [BOTH, PART_ONLY, PART_ONLY]), ("peer", [BOTH, BOTH, PART_ONLY]), ("all", [BOTH] * 3)],
)
def test_every_worker_writes_its_part_of_the_state(tmp_path, copy, steps):
    """And the same state if it is to have a copy: an elastic run may lose any worker."""
    places = [Place(tmp_path / str(worker.member.rank), worker, memory=True, copy=copy) for worker in workers(3)]
    assert together(lambda place: [place.saved(step) for step in (1, 2, 3)], places) == [[True] * 3] * 3
    assert [place.steps() for place in places] == steps
    first, *copies = (place.states.load(3, place.variables) for place in places if place.steps() == BOTH)
    assert all((digest(arrays), progress) == (digest(first[0]), first[1]) for arrays, progress in copies)


def test_state_without_a_workers_part_is_none(three, monkeypatch):
    together(lambda place: place.saved(1), three)
    with monkeypatch.context() as patch:
        fails(patch, three[2].memories.files, FULL)
        assert together(lambda place: place.saved(2), three) == [False] * 3
    assert [place.steps() for place in three] == [([1], [1]), ([], [1]), ([], [1])]
    assert [list(place.saver.missing) for place in three] == [[STATE], [], [PART]]
    assert three[0].heard[0].startswith("the training state is not saved: ")
    assert "a worker has no room for its part of it" in three[0].heard[0]
    assert together(lambda place: place.saved(3), three) == [True] * 3
    assert [place.steps() for place in three] == [([1, 3], [1, 3]), ([], [1, 3]), ([], [1, 3])]
    assert [place.saving.saved for place in three] == [3] * 3


def test_without_room_at_the_chief_parts_are_dropped(three, monkeypatch):
    together(lambda place: place.saved(1), three)
    fails(monkeypatch, three[0].states.files, FULL)
    assert together(lambda place: place.saved(2), three) == [False] * 3
    assert [place.steps() for place in three] == [([1], [1]), ([], [1]), ([], [1])]


def test_where_chief_has_no_room_copy_is_state(copied, monkeypatch):
    together(lambda place: place.saved(1), copied)
    fails(monkeypatch, copied[0].states.files, FULL)
    assert together(lambda place: place.saved(2), copied) == [False] * 3
    assert [place.steps() for place in copied] == [([1], [1, 2]), ([1, 2], [1, 2]), ([], [1, 2])]
    assert [place.saving.saved for place in copied] == [2] * 3
    assert [list(place.saver.missing) for place in copied] == [[STATE], [], []]


def test_without_room_for_the_copy_training_warns(copied, monkeypatch):
    fails(monkeypatch, copied[1].states.files, FULL)
    assert together(lambda place: place.saved(1), copied) == [True] * 3
    assert [place.steps()[0] for place in copied] == [[1], [], []]
    assert [list(place.saver.missing) for place in copied] == [[], [COPY], []]
    assert copied[1].heard[0].startswith("the copy of the training state is not saved: ")


def test_what_a_killed_worker_left_unfinished_is_gone(tmp_path):
    for name in ("state", "memory"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".part-killed.npz").touch()
    Place(tmp_path, *workers(1), memory=True)
    assert not list(tmp_path.rglob(".part-*"))


def test_repeated_save_without_room_keeps_the_earlier(copied, monkeypatch):
    """A state that is saved again and does not fit is still the one before."""
    fails(monkeypatch, copied[0].states.files, FULL)
    assert together(lambda place: place.saved(1), copied) == [False] * 3
    fails(monkeypatch, copied[2].memories.files, FULL)
    assert together(lambda place: place.saved(1), copied) == [False] * 3
    assert [place.steps() for place in copied] == [([], [1]), ([1], [1]), ([], [1])]
    assert [place.saving.saved for place in copied] == [1] * 3


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EROFS, errno.EIO])
def test_undeletable_file_on_a_lost_disk_stays(monkeypatch, tmp_path, number):
    """What cannot be deleted on a disk that is away stays."""

    def unlink(_):
        raise OSError(number, "no")

    monkeypatch.setattr(type(tmp_path), "unlink", unlink)
    assert states._delete(tmp_path / "state") is False
    number = errno.EPERM
    with pytest.raises(OSError, match="no"):
        states._delete(tmp_path / "state")
