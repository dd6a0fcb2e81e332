import math

import pytest

from trainer.records import PHASES
from trainer.straggler import own_work, slowest


def test_own_work_is_all_but_the_all_reduce():
    assert own_work(dict.fromkeys(PHASES, 2.0) | {"all_reduce": 1000.0}) == 8.0


def test_the_slowest_is_compared_with_the_median_of_the_others():
    name, own, factor = slowest({"a": 60.0, "b": 90.0, "c": 50.0, "d": 80.0})
    assert (name, own) == ("b", 90.0)
    assert factor == pytest.approx(90 / 60)


@pytest.mark.parametrize("own", [{}, {"a": 60.0}])
def test_one_host_has_nobody_to_be_slower_than(own):
    assert slowest(own) is None


def test_others_without_any_work():
    assert slowest({"a": 60.0, "b": 0.0}) == ("a", 60.0, math.inf)
    assert slowest({"a": 0.0, "b": 0.0})[2] == math.inf
