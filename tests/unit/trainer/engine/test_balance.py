"""Shares of a step: given, equal, or so that workers of different speed take as long."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainer.common.errors import ConfigError
from trainer.config.schema import Train
from trainer.engine import batch_shares


class Cluster:
    """Worker 0 of several; `others` are the rows that the rest put into a table."""

    def __init__(self, workers, others=()):
        self.member = SimpleNamespace(workers=workers, rank=0)
        self._others = others

    def gather(self, row):
        return np.array([row, *self._others], np.int32)


def never(*_):
    raise AssertionError("nothing is to be measured")


AUTO, GIVEN = Train(batch_sizes="auto"), Train(batch_sizes=(64, 32))


@pytest.mark.parametrize(
    ("train", "workers", "batch", "before", "expected"),
    [
        (Train(), 3, 192, [], [1, 1, 1]),
        (AUTO, 1, 64, [], [1]),
        (GIVEN, 2, 96, [[1, 1]], [64, 32]),
        (AUTO, 2, 96, [[70, 26], [48, 48]], [70, 26]),
        (AUTO, 2, 96, [None, [60, 36]], [60, 36]),
        (AUTO, 2, 96, [[32, 32, 32], [60, 36]], [60, 36]),
    ],
    ids=["equal unless asked", "alone", "a list", "of the run that is continued", "of an earlier run", "for as many workers"],
)
def test_what_is_known_is_not_measured(train, workers, batch, before, expected):
    assert batch_shares.shares(train, Cluster(workers), batch, before, never, never) == (expected, False)


def test_a_list_for_other_workers_is_refused():
    with pytest.raises(ConfigError, match=r"^train.batch_sizes: 2 sizes \(64, 32\) for 3 workers; give one for each$"):
        batch_shares.shares(GIVEN, Cluster(3), 96, [], never, never)


def test_on_more_workers_shares_are_measured_again():
    others = [[30_000, 50_000, 0], [30_000, 50_000, 0]]
    actual = batch_shares.shares(AUTO, Cluster(3, others), 96, [[70, 26], None], lambda size: 0.01 + size / 1600 * 2, lambda: 0.0)
    assert actual == ([32, 32, 32], True)


def test_slow_busy_host_takes_less_than_half():
    """A host of half the speed takes less than half when it has work beside the images."""

    def passes(size):
        return 0.002 + 0.001 * size

    def whole(size):
        return passes(size) + 0.006

    row = np.array([passes(32), passes(64), 0.006]) * 1e6
    sizes, _ = batch_shares.shares(Train(batch_sizes="auto"), Cluster(5, [row] * 3 + [2 * row]), 320, [], passes, lambda: 0.006)
    assert (sum(sizes), sizes[:4]) == (320, [72] * 4)
    times = [whole(size) for size in sizes[:4]] + [2 * whole(sizes[4])]
    assert max(times) / min(times) < 1.03
    fair = 320 / (4 * 64 / whole(64) + 64 / (2 * whole(64)))
    assert fair / max(times) > 0.95


@pytest.mark.parametrize("global_batch", [5, 7, 64, 321])
@pytest.mark.parametrize("speeds", [[1, 1, 1, 1, 1], [1, 2, 3, 4, 5], [1, 1000, 1, 1, 1], [0.001, 1, 1, 1, 1]])
def test_sizes_are_whole_and_leave_nobody_idle(speeds, global_batch):
    """Sizes are whole add up and leave nobody without work."""
    sizes = batch_shares._balanced(global_batch, [(0.0, 1 / speed) for speed in speeds])
    assert sum(sizes) == global_batch
    assert min(sizes) >= 1
    assert all(type(size) is int for size in sizes)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ((32, 0.04, 64, 0.072), (0.008, 0.001)),
        ((32, 0.08, 64, 0.07), (0.0, 0.07 / 64)),
        ((32, 0.01, 64, 0.07), (0.0, 0.07 / 64)),
        ((1, 0.01, 1, 0.01), (0.0, 0.01)),
    ],
)
def test_line_through_two_measurements_is_never_negative(measured, expected):
    """A line through two measurements never has a part below zero."""
    assert batch_shares._line(*measured) == pytest.approx(expected)


def test_it_is_told_in_images_of_whole_step():
    assert batch_shares.described(["node1", "node2"], 96, [2, 1], "image") == "node1 64, node2 32 images per step"
    assert batch_shares.described(["a", "b", "c"], 10, [1, 1, 2], "row") == "a 2, b 3, c 5 rows per step", "they add up"
