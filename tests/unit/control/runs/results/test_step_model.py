"""What a step of several hosts should take: known answers."""

import dataclasses

import pytest

from control.runs.results import step_model
from control.runs.results.step_model import Hosts, Trial, _step, curve
from trainer.common.errors import LockstepError

NAMES = ["a", "b", "c"]
NETWORK = {
    "a": {"pairs": {"b": {"mbit_s": 900.0, "rtt_ms": 0.2}, "c": {"mbit_s": 800.0, "rtt_ms": 0.3}}, "ring": {"to": "b", "mbit_s": 700.0}},
    "b": {"pairs": {"a": {"mbit_s": 910.0, "rtt_ms": 0.2}, "c": {"mbit_s": 850.0, "rtt_ms": 0.4}}, "ring": {"to": "c", "mbit_s": 500.0}},
    "c": {"pairs": {"a": {"mbit_s": 950.0, "rtt_ms": 0.9}, "b": {"mbit_s": 100.0, "rtt_ms": 9.9}}, "ring": {"to": "a", "mbit_s": 600.0}},
}
SMALL, LARGE = 1_000, 10_000_000
"""Bytes that go to all in one hop, and bytes that do not."""


def timed(alone, transport="direct", **methods):
    """The answer of a host; `methods` by name: own step, sums, and exchange seconds for 2 and 3 workers."""
    actual = {
        name: {"step_seconds": own, "sums": sums, "exchange_seconds": dict(zip("23", exchange, strict=False))}
        for name, (own, sums, exchange) in methods.items()
    }
    return {"step_seconds": alone, "transport": transport, "methods": actual}


def hosts(*answers, network=NETWORK):
    return Hosts(NAMES[: len(answers)], dict(zip(NAMES, answers, strict=False)), network)


def test_one_host_needs_no_network():
    one = _step(hosts(timed(0.5), network={}), 128)
    assert (one.method, one.step_s, one.images_per_s, one.efficiency) == ("", 0.5, 256.0, 1.0)


def test_step_is_slowest_host_plus_exchange_and_delay():
    """A step is the slowest host with its method its exchange the wire and the delay."""
    quick, slow = timed(0.5, packed=(0.6, [LARGE], [0.01, 0.02])), timed(0.8, packed=(0.9, [LARGE], [0.03, 0.04]))
    one = _step(hosts(quick, slow), 128)
    # Two workers send 10 MB each, in two hops: at 700 Mbit/s, with 0.2 ms there and back.
    assert (one.method, one.compute_s, one.exchange_s) == ("packed", 0.9, 0.03)
    assert one.wire_s == pytest.approx(80 / 700)
    assert one.latency_s == pytest.approx(0.0002)
    assert one.step_s == pytest.approx(0.9 + 0.03 + 80 / 700 + 0.0002)
    assert one.images_per_s == pytest.approx(256 / one.step_s)
    assert one.efficiency == pytest.approx(one.images_per_s / (128 / 0.5 + 128 / 0.8))


def test_direct_exchange_uses_pairs_and_ring_its_neighbours():
    direct = hosts(*[timed(0.5, packed=(0.5, [LARGE], []))] * 3)
    ring = hosts(*[timed(0.5, "tensorflow", packed=(0.5, [LARGE], []))] * 3)
    # 4/3 of 10 MB each. The slowest pair of all is b to c, 500 Mbit/s with all sending at once; c to b, 100, is no pair of ours.
    assert direct.sending("packed") == pytest.approx((8e7 * 4 / 3 / 500e6, 2 * 0.0004 / 2))
    assert ring.sending("packed") == pytest.approx((8e7 * 4 / 3 / 500e6, 4 * 0.0009 / 2))
    assert ring.exchanging("packed") == 0.0


def test_small_messages_go_to_all_in_one_hop():
    one = hosts(*[timed(0.5, packed=(0.5, [SMALL, SMALL], []))] * 3).sending("packed")
    assert one == pytest.approx((2 * 2 * SMALL * 8e-6 / 500, 2 * 0.0004 / 2))


def test_several_hosts_without_a_bandwidth():
    with pytest.raises(LockstepError, match=r"^no prediction: no bandwidth was measured between the 2 hosts; run the doctor again$"):
        _step(hosts(*[timed(0.5, packed=(0.5, [LARGE], []))] * 2, network={"a": {"pairs": {"b": {"rtt_ms": 0.1}}}}), 128)


def test_several_hosts_that_share_no_method():
    with pytest.raises(LockstepError, match=r"^no prediction: the hosts timed no common way to send gradients"):
        _step(hosts(timed(0.5, packed=(0.5, [LARGE], [])), timed(0.5, half=(0.5, [LARGE], []))), 128)


@pytest.mark.parametrize(("large", "chosen"), [(LARGE, "powersgd"), (100_000, "packed")])
def test_gradients_are_compressed_where_auto_compresses_them(large, chosen):
    """10 MB take 0.11 s beside 0.5 s of own work, 100 kB 1 ms."""
    answer = timed(0.5, packed=(0.5, [large], [0.0, 0.0]), powersgd=(0.55, [SMALL, SMALL], [0.0, 0.0]))
    assert [one.method for one in curve(hosts(answer, answer), 64)] == ["", chosen]


def test_one_method_is_taken_as_it_is():
    answer = timed(0.5, half=(0.5, [LARGE], [0.0, 0.0]))
    assert _step(hosts(answer, answer), 64).method == "half"


def test_untimed_exchange_lies_between_two_timed_ones():
    answer = timed(0.5, packed=(0.5, [SMALL], []))
    answer["methods"]["packed"]["exchange_seconds"] = {"2": 0.1, "4": 0.3}
    assert hosts(*[answer] * 3).exchanging("packed") == pytest.approx(0.2)


def test_untimed_host_counts_as_the_usual_one():
    one = dataclasses.replace(hosts(timed(0.4), timed(0.6)), names=NAMES)
    assert one.alone() == [0.4, 0.6, 0.5]


@pytest.fixture
def three():
    return hosts(*[timed(0.5, packed=(0.5, [SMALL], [0.001, 0.002]), powersgd=(0.6, [SMALL, SMALL], [0.001, 0.002]))] * 3)


def test_extra_trial_time_is_waiting_in_proportion(three):
    """What the trial took longer is waiting in proportion to what comes from others."""
    bare, with_trial = curve(three, 100), curve(three, 100, Trial("packed", 0.9))
    waiting = 0.9 - bare[2].step_s
    assert [one.waiting_s for one in with_trial] == pytest.approx([0.0, waiting * (1 / 2) / (2 / 3), waiting])
    assert with_trial[2].step_s == pytest.approx(0.9)
    assert with_trial[2].images_per_s == pytest.approx(300 / 0.9)
    assert with_trial[2].efficiency == pytest.approx(300 / 0.9 / 600)
    assert with_trial[0] == bare[0]


def test_all_send_as_the_trial_did(three):
    assert [one.method for one in curve(three, 100, Trial("powersgd", 0.9))] == ["", "powersgd", "powersgd"]


def test_quicker_trial_makes_no_step_shorter_than_computing(three):
    last = curve(three, 100, Trial("packed", 0.1))[-1]
    assert (last.step_s, last.images_per_s) == (pytest.approx(0.5), pytest.approx(600))


def test_time_that_overlaps_is_no_negative_waiting(three):
    bare = curve(three, 100)[-1]
    last = curve(three, 100, Trial("packed", (0.5 + bare.step_s) / 2))[-1]
    parts = (last.exchange_s, last.wire_s, last.latency_s)
    assert parts == pytest.approx((bare.exchange_s / 2, bare.wire_s / 2, bare.latency_s / 2))
    assert (last.waiting_s, last.compute_s + sum(parts)) == (0.0, pytest.approx(last.step_s))


def test_trial_of_an_untimed_method_is_left_out(three):
    """A trial with a method that nobody timed is left out. A worker wrote its name."""
    assert curve(three, 100, Trial("../x", 0.9)) == curve(three, 100)


def test_links():
    assert step_model.ring(NAMES) == [("a", "b"), ("b", "c"), ("c", "a")]
    assert step_model.ring(["a"]) == []
    assert step_model.slowest(step_model.ring(NAMES), NETWORK) == 500.0
    assert step_model.slowest([("a", "b")], NETWORK) == 700.0
    assert step_model.slowest([], NETWORK) is None
    assert step_model._longest(step_model.ring(NAMES), NETWORK) == 0.9
    assert step_model._longest([], NETWORK) is None
