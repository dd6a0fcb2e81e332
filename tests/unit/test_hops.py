"""One hop or two: by the time of steps that try both."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainer import choosing, direct


class Trial:
    """Two workers alike, whose steps take seconds by the limit that is set."""

    def __init__(self, monkeypatch, seconds, middling=True):
        self.now, self.limits, self.seconds, self.has_middling, self.workers = 0.0, [], seconds, middling, 2
        monkeypatch.setattr(choosing, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def one_hop_up_to(self, limit):
        self.limits.append(limit)

    def all_reduce(self, arrays):
        return [2 * np.asarray(array) for array in arrays]

    def train_call(self, batches, rates):
        assert batches.images.shape == (choosing.TRIED, 3, 8, 8, 1)
        assert not rates.any()
        self.now += self.seconds[self.limits[-1]].pop(0)
        return np.zeros((choosing.TRIED, 4), np.float32).view(Awaited)


class Awaited(np.ndarray):
    """A result of TensorFlow's."""

    def numpy(self):
        return self


def chosen(trial):
    told = choosing.hops(SimpleNamespace(direct=trial), trial.train_call, (8, 8, 1), 3)
    return trial.limits, told


@pytest.mark.parametrize(("one", "limit"), [(0.1, direct.MIDDLING), (0.3, direct.ONE_HOP), (0.2, direct.ONE_HOP)])
def test_the_faster_is_kept_and_one_slow_trial_does_not_count(one, limit, monkeypatch):
    trial = Trial(monkeypatch, {direct.ONE_HOP: [0.2] * 5, direct.MIDDLING: [one, 9.0, one, one, one]})
    limits, told = chosen(trial)
    assert limits == [direct.ONE_HOP, direct.MIDDLING] * 5 + [limit]
    way = "one hop" if limit == direct.MIDDLING else "two hops"
    assert told == f"Sums of a middling size travel in {way}: {one * 250:.1f} ms a step in one, 50.0 in two."


@pytest.mark.parametrize(("seconds", "times"), [(0.39, 5), (0.9, 2), (1.1, 1), (30, 1)])
def test_slow_steps_are_tried_less_often(seconds, times, monkeypatch):
    trial = Trial(monkeypatch, {limit: [seconds] * 5 for limit in (direct.ONE_HOP, direct.MIDDLING)})
    assert len(chosen(trial)[0]) == 2 * times + 1


def test_where_sums_are_tiny_or_large_or_nobody_connects_directly_nothing_is_tried(monkeypatch):
    assert chosen(Trial(monkeypatch, {}, middling=False)) == ([], None)
    assert choosing.hops(SimpleNamespace(direct=None), None, (8, 8, 1), 3) is None
