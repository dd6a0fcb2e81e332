import dataclasses
import math

import pytest

from trainer.host.host_load import Load
from trainer.rundir.schemas import PHASES
from trainer.rundir.straggler import diagnose, own_work, slowest


def test_own_work_is_all_but_the_all_reduce():
    assert own_work(dict.fromkeys(PHASES, 2.0) | {"all_reduce": 1000.0}) == 8.0


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"a": 60.0, "b": 90.0, "c": 50.0, "d": 80.0}, ("b", 90.0, 1.5)),
        ({"a": 60.0, "b": 0.0}, ("a", 60.0, math.inf)),
        ({"a": 0.0, "b": 0.0}, ("a", 0.0, math.inf)),
        ({"a": 60.0}, None),
        ({}, None),
    ],
)
def test_slowest_is_compared_with_median_of_others(own, expected):
    assert slowest(own) == expected


# --- causes: loads as measured on hosts with 0.38 CPUs each, in thousandths

EVEN = Load(own_us=90_000, input_us=200, limit=380, others=4, memory=200, rate=100_000, reduced_us=45_000)
SENT = 240_000


def changed(**fields):
    return dataclasses.replace(EVEN, **fields)


def loads(slow, rank=2, workers=5):
    return [slow if number == rank else EVEN for number in range(workers)]


@pytest.mark.parametrize(
    ("cause", "slow", "value", "usual"),
    [
        ("quota", {"limit": 190}, 190, 380),
        ("load", {"others": 150}, 150, 4),
        ("steal", {"steal": 120}, 120, 0),
        ("heat", {"heat": 7, "clock": 500}, 7, 0),
        ("memory", {"faults": 300, "memory": 940, "input_us": 80_000}, 940, 200),
        ("memory", {"swapped": 300}, 200, 200),
        ("disk", {"input_us": 80_000}, 80_000, 200),
        ("disk", {"faults": 300}, 200, 200),
        ("unknown", {}, 0, 0),
    ],
)
def test_the_cause_is_what_differs_on_that_host(cause, slow, value, usual):
    actual = diagnose(loads(changed(own_us=180_000, **slow)), SENT)
    assert (actual.rank, actual.cause, actual.own_us, actual.others_us) == (2, cause, 180_000, 90_000)
    assert (actual.value, actual.usual) == (value, usual)


def test_slow_clock_is_one_where_others_are_fast():
    fast = changed(clock=1000)
    slow = changed(own_us=180_000, clock=600)
    assert diagnose([fast, slow, fast], SENT).cause == "clock"
    assert diagnose([dataclasses.replace(fast, clock=620), slow, dataclasses.replace(fast, clock=620)], SENT).cause == "unknown"


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"own_us": 98_000},
        {"own_us": 110_000},
        {"own_us": 60_000},
        {"others": 150},
        {"limit": 190},
        {"faults": 300, "memory": 990},
        {"rate": 40_000},
        {"rate": 0},
        {"lost": 50},
    ],
)
def test_even_own_work_means_no_straggler(odd):
    """No straggler is named while own work is even.

    A host with less of something is no straggler if its steps are as quick as the others'.
    """
    assert diagnose(loads(changed(**odd)), SENT) is None


def test_slow_link_shows_in_rates_alone():
    actual = diagnose(loads(changed(rate=6_000)), SENT)
    # 240 kB take 40 ms at 6 MB/s, and 2.4 ms at 100 MB/s.
    assert (actual.rank, actual.cause, actual.own_us, actual.others_us) == (2, "link", 40_000, 2_400)
    assert (actual.value, actual.usual) == (6_000, 100_000)
    assert diagnose(loads(changed(rate=6_000)), 24_000) is None, "few bytes take little time on any link"


def test_link_takes_no_longer_than_all_reduce():
    """A worker's connections may share its link: the best carries a part of what the link does."""
    late = changed(rate=2_000)
    actual = diagnose([*loads(late)[:4], changed(reduced_us=30_000)], SENT)
    # 240 kB take 120 ms at 2 MB/s; the worker that waits for nobody is through with the all-reduce in 30 ms.
    assert (actual.rank, actual.own_us, actual.others_us) == (2, 30_000, 2_400)


@pytest.mark.parametrize("workers", [2, 5])
def test_rate_that_all_reduce_refutes_is_not_believed(workers):
    """As measured on one machine: 11 MB a step, 37 Mbit/s according to the kernel, an all-reduce of 9 ms."""
    rows = [changed(own_us=19_000, rate=1_065_000, reduced_us=9_000)] * workers
    slow = [*rows[1:], dataclasses.replace(rows[0], rate=4_625, reduced_us=14_000)]
    assert diagnose(slow, 11_000_000) is None


@pytest.mark.parametrize("own_us", [115_000, 140_000])
def test_slow_link_is_the_cause_without_own_work(own_us):
    """A slow link is the cause where own work shows none."""
    slow = loads(changed(rate=6_000))
    slow[0] = dataclasses.replace(slow[0], own_us=own_us)
    actual = diagnose(slow, SENT)
    assert (actual.rank, actual.cause) == (2, "link")


@pytest.mark.parametrize("rows", [[], [EVEN], [EVEN, Load()], [Load(), Load()]])
def test_nothing_to_compare(rows):
    assert diagnose(rows, SENT) is None
