"""What a worker's reduction remembers, saved and taken up again."""

import numpy as np
import pytest

from trainer.checkpoint.states import Memories
from trainer.network.host_array import HostArray
from trainer.network.member import Member


def memories(folder, shapes=((3, 4), (2,)), workers=2):
    return Memories(folder, Member(0, ["a:1"] * workers), 2, [HostArray(shape) for shape in shapes])


def write(made, step, attempt):
    made.write(step, attempt, [array.numpy() for array in made.memory])


def save(made, step, attempt):
    write(made, step, attempt)
    made.files.tidy(step)


def saved(folder):
    made = memories(folder)
    for number, array in enumerate(made.memory, 1):
        array.assign(np.full(array.shape, number, np.float32))
    save(made, 7, "first")
    return made


@pytest.mark.parametrize(
    ("attempt", "other"),
    [("first", {"workers": 3}), ("first", {"shapes": ((5, 4), (2,))}), ("first", {"shapes": ((3, 4),)}), ("second", {})],
    ids=["workers", "shape", "number", "attempt"],
)
def test_part_of_another_reduction_or_attempt_stays(tmp_path, attempt, other):
    saved(tmp_path)
    made = memories(tmp_path, **other)
    assert not made.has(7, attempt)
    assert not made.load(7, attempt)
    assert not any(array.numpy().any() for array in made.memory)


def test_what_lies_of_later_steps_takes_no_place(tmp_path):
    made = Memories(tmp_path, Member(0, ["a:1", "b:1"]), 2, [HostArray((3, 4))])
    for step, attempt in ((5000, "first"), (5500, "first"), (1500, "second"), (2000, "second")):
        save(made, step, attempt)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-000001500.npz", "step-000002000.npz"]


def test_part_before_stays_until_it_is_not_needed(tmp_path):
    """The part of the state before stays until that state is surely not needed."""
    made = Memories(tmp_path, Member(0, ["a:1", "b:1"]), 1, [HostArray((3, 4))])
    for step in (5, 6, 7):
        save(made, step, "first")
    assert [made.has(step, "first") for step in (5, 6, 7)] == [False, True, True]
