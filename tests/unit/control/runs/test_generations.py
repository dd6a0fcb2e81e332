"""Marks by which the watchers of a run's hosts know its chief."""

from control.remote.remote import clear_marks
from control.runs import generations


def test_the_newest_generation_is_known_to_all(tmp_path):
    folder = tmp_path / "run"
    assert generations.newest(folder) == 0
    for number in (2, 10, 9):
        generations.note(folder, number)
    (folder / "generation-x").touch()
    assert generations.newest(folder) == 10


def test_another_launch_begins_anew(tmp_path):
    generations.note(tmp_path, 3)
    generations.note_end(tmp_path)
    assert generations.is_over(tmp_path)
    clear_marks(tmp_path)
    assert (generations.newest(tmp_path), generations.is_over(tmp_path)) == (0, False)
