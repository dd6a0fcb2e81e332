"""One hop or two: by the time of training's own calls, which take turns."""

import collections
from types import SimpleNamespace

import numpy as np
import pytest

from trainer import direct, hops

RATES = np.zeros(8, np.float32)
IN_TURN = [direct.MIDDLING, direct.ONE_HOP, direct.ONE_HOP, direct.MIDDLING]


class Workers:
    """Workers alike, whose calls take seconds by the limit that is set."""

    def __init__(self, monkeypatch, seconds, middling=True):
        self.now, self.limits, self.said, self.seconds, self.middling, self.workers = 0.0, [], [], seconds, middling, 2
        self.tried = collections.Counter()
        monkeypatch.setattr(hops, "time", SimpleNamespace(perf_counter=lambda: self.now))
        self.call = hops.Hops(self._train, self, self.said.append)

    @property
    def has_middling(self):
        return self.middling

    def one_hop_up_to(self, limit):
        self.limits.append(limit)

    def all_reduce(self, arrays):
        return [2 * np.asarray(array) for array in arrays]

    def _train(self, batches, rates):
        limit = self.limits[-1]
        self.now += self.seconds[limit](self.tried[limit]) if self.tried else 9.0
        self.tried[limit] += 1
        return SimpleNamespace(numpy=lambda: None, given=(batches, rates))

    def train(self, calls):
        for _ in range(calls):
            assert self.call("images", RATES).given == ("images", RATES)
        return self.call.settled


def steady(seconds):
    return lambda number: seconds + 0.001 * (number % 2)


@pytest.mark.parametrize(("one", "way", "limit"), [(0.8, "one hop", direct.MIDDLING), (1.2, "two hops", direct.ONE_HOP)])
def test_the_faster_way_is_kept_and_told(one, way, limit, monkeypatch):
    workers = Workers(monkeypatch, {direct.MIDDLING: steady(one), direct.ONE_HOP: steady(1.0)})
    assert not workers.train(16)
    assert workers.train(1)
    assert workers.limits == [direct.ONE_HOP, *IN_TURN * 4, limit]
    tell = f"Sums of a middling size travel in {way}: {one * 125 + 0.06:.1f} ms a step in one, 125.1 in two, over 16 calls."
    assert workers.said == [tell]
    assert workers.train(50)
    assert len(workers.limits) == 18
    assert len(workers.said) == 1


def test_a_single_slow_call_does_not_decide(monkeypatch):
    workers = Workers(monkeypatch, {direct.MIDDLING: lambda number: 3.0 if number == 2 else 0.95, direct.ONE_HOP: lambda _: 1.0})
    assert not workers.train(1 + 16)
    assert not workers.train(15)
    while not workers.call.settled:
        workers.train(1)
    assert "one hop" in workers.said[0]


def test_calls_that_grow_slower_are_no_reproach_to_either(monkeypatch):
    workers = Workers(monkeypatch, {})
    workers.seconds = dict.fromkeys(IN_TURN, lambda _: 1.0 + workers.now / 100)
    assert not workers.train(1 + 32)


def test_what_makes_no_difference_is_not_tried_for_ever(monkeypatch):
    workers = Workers(monkeypatch, dict.fromkeys(IN_TURN, lambda _: 1.0 + np.random.default_rng(int(workers.now * 1e6)).normal() / 10))
    while not workers.call.settled:
        workers.train(1)
    assert workers.limits[1:-1] in [IN_TURN * (calls // 4) for calls in (16, 32, 64, 128)]


def test_nothing_is_tried_where_sums_are_tiny_or_large(monkeypatch):
    workers = Workers(monkeypatch, dict.fromkeys(IN_TURN, steady(1.0)), middling=False)
    assert workers.train(1)
    workers.train(20)
    assert workers.limits == [direct.ONE_HOP]
    assert not workers.said


def test_nothing_is_tried_without_connections():
    call = hops.Hops(lambda batches, rates: (batches, rates), None, pytest.fail)
    assert call.settled
    assert call("images", RATES) == ("images", RATES)
