"""Compress or not: by what a step's own work takes and what sending would."""

import numpy as np
import pytest

from control.runs.results.step_model import Traffic, _traffic, step_traffic
from trainer.config.schema import Reduction
from trainer.network.sockets_all_reduce import ONE_HOP, _Route
from trainer.reduction.cost_model import DIRECT, TENSORFLOW, GradientTraffic

TASK = [(3, 3, 3, 32), (32,), (28800, 128), (128,), (128, 10), (10,)]


def test_a_slow_wire_compresses():
    actual = GradientTraffic(Reduction(rank=2), TASK).choose(own=0.074, sending=1.9)
    assert (actual.name, actual.sent_bytes) == ("powersgd", 2 * 2 * 28800 + (2 + 4) * 4 * 128 + 4 * (864 + 32 + 128 + 1280 + 10))
    assert actual.why == (
        "compressed (PowerSGD, rank 2, 128 kB instead of 14,755): all of them would take 1,900 ms, 2568% of the 74 ms of "
        "a step's own work, more than 10%"
    )


def test_a_fast_one_does_not():
    actual = GradientTraffic(Reduction(), TASK).choose(own=0.5, sending=0.0042)
    assert (actual.name, actual.sent_bytes) == ("packed", 4 * 3_688_714)
    assert (
        actual.why == "as they are: all of them would take 4.2 ms, 1% of the 500 ms of a step's own work; from 10% on they are compressed"
    )


@pytest.mark.parametrize(("sending", "name"), [(0.0100, "packed"), (0.0101, "powersgd")])
def test_a_tenth_is_the_edge(sending, name):
    assert GradientTraffic(Reduction(), TASK).choose(own=0.1, sending=sending).name == name


def test_without_large_tensors_nothing_is_compressed():
    actual = GradientTraffic(Reduction(), [(3, 3, 3, 32), (32,)]).choose(own=0.001, sending=1.0)
    assert (actual.name, actual.why.partition(" (")[0]) == ("packed", "as they are: none is large enough to compress")


def test_bytes_of_every_method():
    flat = sum(shape[0] for shape in TASK if len(shape) == 1)
    assert GradientTraffic(Reduction(), TASK).sent_bytes("half") == 2 * 3_688_714 + 2 * flat
    assert GradientTraffic(Reduction(rank=4, dtype="float32"), TASK).sent_bytes("powersgd") == 4 * 4 * 28800 + (4 + 4) * 4 * 128 + 4 * 2314


SMALL = ONE_HOP // 4


@pytest.mark.parametrize(
    ("transport", "size", "workers", "hops", "messages", "sent"),
    [
        (DIRECT, 1000, 1, 0, 0, 0),
        (TENSORFLOW, 1000, 1, 0, 0, 0),
        (TENSORFLOW, 1000, 5, 8, 8, 1600),
        (DIRECT, 1_000_000, 5, 2, 8, 1_600_000),
        (DIRECT, SMALL, 5, 1, 4, ONE_HOP),
        (DIRECT, SMALL + 1, 5, 2, 8, 1.6 * (SMALL + 1)),
    ],
    ids=["alone", "alone, by TensorFlow", "a ring", "parts", "small, whole to all", "not small"],
)
def test_hops_messages_and_bytes_of_a_sum(transport, size, workers, hops, messages, sent):
    assert _traffic(transport, size, workers) == Traffic(hops, messages, pytest.approx(sent))


@pytest.mark.parametrize("floats", [1000, 4096, 4097, 100_000])
@pytest.mark.parametrize("workers", [2, 5])
def test_the_direct_exchange_sends_as_computed(floats, workers):
    """Against its own division of the work."""
    routes = [_Route([np.zeros(floats, np.float32)], workers, rank) for rank in range(workers)]
    others = [sum(piece.stop - piece.start for piece in route.summed_by[rank]) for rank, route in enumerate(routes)]
    whole, parts = 4 * floats * (workers - 1) * workers, sum(4 * (floats - mine + mine * (workers - 1)) for mine in others)
    sent = whole if routes[0].one_hop else parts
    expected = _traffic(DIRECT, 4 * floats, workers)
    assert (expected.hops == 1) == routes[0].one_hop
    assert sent / workers == pytest.approx(expected.bytes)


def test_sums_of_a_step():
    left, right, small = 2 * 2 * 28800, (2 + 4) * 4 * 128, 4 * 2314
    assert GradientTraffic(Reduction(rank=2), TASK).sums("powersgd", DIRECT) == (left, small + right + 16)
    assert GradientTraffic(Reduction(rank=2), TASK).sums("powersgd", TENSORFLOW) == (left + small + 16, right)
    assert GradientTraffic(Reduction(), TASK).sums("packed", DIRECT) == (4 * 3_688_714 + 16,)
    assert GradientTraffic(Reduction(), [(3, 3, 3, 32), (32,)]).sums("powersgd", DIRECT) == (4 * (864 + 32) + 16,)


def test_a_compressed_step_of_five_takes_three_hops():
    sums = GradientTraffic(Reduction(rank=2), TASK).sums("powersgd", DIRECT)
    assert step_traffic(DIRECT, sums, 5) == Traffic(3, 12, pytest.approx(1.6 * sums[0] + 4 * sums[1]))
