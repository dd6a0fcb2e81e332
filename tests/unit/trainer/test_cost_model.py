"""Compress or not: by what a step's own work takes and what sending would."""

import pytest

from trainer.config import Reduction
from trainer.reduction.cost_model import choose, sent_bytes

TASK = [(3, 3, 3, 32), (32,), (28800, 128), (128,), (128, 10), (10,)]


def test_a_slow_wire_compresses():
    found = choose(Reduction(rank=2), TASK, own=0.074, sending=1.9)
    assert (found.name, found.sent_bytes) == ("powersgd", 2 * 2 * 28800 + (2 + 4) * 4 * 128 + 4 * (864 + 32 + 128 + 1280 + 10))
    assert found.why == (
        "compressed (PowerSGD, rank 2, 128 kB instead of 14,755): all of them would take 1,900 ms, 2568% of the 74 ms of "
        "a step's own work, more than 10%"
    )


def test_a_fast_one_does_not():
    found = choose(Reduction(), TASK, own=0.5, sending=0.0042)
    assert (found.name, found.sent_bytes) == ("packed", 4 * 3_688_714)
    assert found.why == "as they are: all of them would take 4.2 ms, 1% of the 500 ms of a step's own work; from 10% on they are compressed"


@pytest.mark.parametrize(("sending", "name"), [(0.0100, "packed"), (0.0101, "powersgd")])
def test_a_tenth_is_the_edge(sending, name):
    assert choose(Reduction(), TASK, own=0.1, sending=sending).name == name


def test_where_no_tensor_is_large_there_is_nothing_to_compress():
    found = choose(Reduction(), [(3, 3, 3, 32), (32,)], own=0.001, sending=1.0)
    assert (found.name, found.why.partition(" (")[0]) == ("packed", "as they are: none is large enough to compress")


def test_bytes_of_every_method():
    flat = sum(shape[0] for shape in TASK if len(shape) == 1)
    assert sent_bytes(Reduction(), "half", TASK) == 2 * 3_688_714 + 2 * flat
    assert sent_bytes(Reduction(rank=4, dtype="float32"), "powersgd", TASK) == 4 * 4 * 28800 + (4 + 4) * 4 * 128 + 4 * 2314
