"""What the workers exchange outside a step; the collectives themselves are tested by real runs."""

import numpy as np
import pytest

from tests.unit.workers import together, workers
from trainer.network.array_group import digest

MINE = [np.array([[1.5, -0.0]], np.float32), np.array([3], np.int64)]
OTHER = [np.array([[np.nan, 7.0]], np.float32), np.array([5], np.int64)]


def exchanged(rank, *arrays):
    """What each worker has of one worker's arrays, and how many sums that took."""
    made = workers(len(arrays))
    results = together(lambda worker, own: worker.from_worker(rank, own), made, arrays)
    return results, made[0].sums


def test_nothing_is_sent_if_all_have_the_same():
    results, sums = exchanged(0, MINE, MINE)
    assert [digest(values) for values in results] == [digest(MINE)] * 2
    assert sums == 1


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_other_worker_sends_what_one_lacks(rank):
    arrays = [MINE, MINE, MINE]
    arrays[rank] = OTHER
    results, sums = exchanged(rank, *arrays)
    assert [digest(values) for values in results] == [digest(OTHER)] * 3
    assert [array.dtype for array in results[2]] == [array.dtype for array in MINE]
    assert sums == 2


def test_texts_of_all_and_of_one():
    texts = ["", "Käse", "x" * 300]
    assert together(lambda worker, own: worker.texts(own), workers(3), texts) == [texts] * 3
    assert together(lambda worker, own: worker.text_from(1, own), workers(3), texts) == ["Käse"] * 3
    assert together(lambda worker, own: worker.text_from_chief(own), workers(2), ["a", "b"]) == ["a"] * 2


@pytest.mark.parametrize(("factor", "others", "most"), [(1.0, [], 0.0), (1 + 1e-4, [2], 1e-4), (2.0, [2], 1.0)])
def test_who_differs_goes_on_with_the_chiefs(factor, others, most):
    """By how much is known on all workers."""

    def agree(worker):
        mine = [np.array([0.5, -2.0], np.float32) * (factor if worker.member.rank == 2 else 1), np.array([7], np.int64), np.ones(0)]
        return worker.chief_arrays(mine)

    for agreed in together(agree, workers(3)):
        np.testing.assert_array_equal(agreed.arrays[0], np.array([0.5, -2.0], np.float32))
        assert (agreed.others, agreed.most) == (others, pytest.approx(most, rel=1e-2))
