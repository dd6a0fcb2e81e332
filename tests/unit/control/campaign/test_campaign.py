"""Trials side by side: each slot holds one at a time, in order; whatever one raises ends all."""

import threading

import pytest

from control.campaign.store import side_by_side
from control.common.child_playbooks import Interrupted

LIMIT_S = 20


def results(trials, slots, one, again=()):
    """Trials with their slots and results, in the order in which they ended; those in `again` are run once more."""
    ended, repeat = [], list(again)

    def done(job, result):
        ended.append((job.trial, job.slot, result))
        return job.trial in repeat and not repeat.remove(job.trial)

    side_by_side(trials, slots, one, done, lambda running: None)
    return ended


def test_one_slot_runs_them_in_order():
    ended = results("abc", ["hosts"], lambda trial, slot, given_up: trial.upper())
    assert ended == [("a", "hosts", "A"), ("b", "hosts", "B"), ("c", "hosts", "C")]
    assert results([], [1], lambda trial, slot, given_up: trial) == []


def test_one_that_failed_is_run_again_before_others():
    assert [trial for trial, _, _ in results("abc", [1], lambda trial, slot, given_up: trial, again="b")] == ["a", "b", "b", "c"]


def test_as_many_trials_run_as_slots_allow():
    together, busy, most = threading.Barrier(2), set(), []

    def one(trial, slot, given_up):
        assert slot not in busy
        busy.add(slot)
        most.append(len(busy))
        # Passes only when both slots are in use.
        together.wait(LIMIT_S)
        busy.remove(slot)
        return trial

    ended = results(range(6), ["left", "right"], one)
    assert sorted(trial for trial, _, _ in ended) == list(range(6))
    assert max(most) == 2


def test_the_caller_is_shown_what_runs():
    seen, shown = threading.Event(), []

    def look(running):
        shown.append([(job.trial, job.slot) for job in running])
        seen.set()

    side_by_side(["a"], ["s"], lambda trial, slot, given_up: seen.wait(LIMIT_S), lambda job, result: False, look)
    assert shown[0] == [("a", "s")]


def test_interrupted_trial_ends_others_and_starts_no_more():
    ended, begun, both = [], [], threading.Barrier(2)

    def one(trial, slot, given_up):
        begun.append(trial)
        both.wait(LIMIT_S)
        if trial == "a":
            raise Interrupted
        for _ in range(100 * LIMIT_S):
            if given_up():
                ended.append(trial)
                return
            threading.Event().wait(0.01)

    with pytest.raises(Interrupted):
        side_by_side("abcd", [1, 2], one, lambda job, result: False, lambda running: None)
    assert (sorted(begun), ended) == (["a", "b"], ["b"])
