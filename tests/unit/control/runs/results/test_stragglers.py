"""A straggler in words."""

import pytest

from control.runs.results import stragglers
from trainer.rundir.straggler import CAUSES

HOSTS = ["node1", "node2", "node3"]


def record(cause="quota", rank=2, value=190, usual=380, own_us=180_000, others_us=90_000):
    return {"kind": "straggler", "cause": cause, "rank": rank, "own_us": own_us, "others_us": others_us, "value": value, "usual": usual}


@pytest.mark.parametrize(
    ("cause", "value", "usual", "words"),
    [
        (
            "quota",
            190,
            380,
            "it may use 0.19 CPUs, the others 0.38. Fix: raise the CPU quota of its control group, or give it a smaller",
        ),
        (
            "load",
            1500,
            0,
            "other processes use 1.50 CPUs there, elsewhere 0.00. Fix: end them (top shows them), or give it a smaller batch",
        ),
        ("steal", 300, 0, "other virtual machines take 0.30 of its CPUs. Fix: move it to a machine of its own, or give it a smaller batch"),
        ("heat", 7, 0, "its processor was slowed 7 times because of its temperature. Fix: cool it, or give it a smaller batch"),
        (
            "clock",
            600,
            1000,
            "its processor runs at 60% of its highest clock, the others at 100%. Fix: see its power supply and governor, or",
        ),
        ("memory", 940, 200, "its memory is full: programs use 94% of the limit. Fix: end what else is there, raise the limit, or"),
        ("disk", 80_000, 200, "it waits 80 ms of each step for input, the others 0. Fix: a faster disk, or more memory"),
        ("link", 6_250, 117_000, "its best connection carries 50 Mbit/s, the others' 936. Fix: see its cable and switch port"),
        ("unknown", 0, 0, "no cause is visible there: its processor may be slower. Fix: -e set=train.batch_sizes=auto gives it"),
    ],
)
def test_host_cost_cause_and_fix(cause, value, usual, words):
    sentence = stragglers.sentence(record(cause, value=value, usual=usual), HOSTS)
    assert sentence.startswith(f"node3 is slow, and the others wait 90 ms of each step for it: {words}")


def test_every_cause_has_words_at_any_size():
    assert set(stragglers.WORDS) == set(CAUSES)
    assert "Fix" in stragglers.sentence(record(value=10**15, usual=0, own_us=0, others_us=10**15), HOSTS)


@pytest.mark.parametrize("none", [record(cause=""), record(rank=3), record(rank=10**15)])
def test_no_straggler_or_no_such_host(none):
    """A worker wrote the record: its rank may be nobody's."""
    assert stragglers.sentence(none, HOSTS) == ""


def test_the_last_comparison_counts():
    assert stragglers.last([]) is None
    assert stragglers.last([{"kind": "steps"}, record(rank=1), {"kind": "epoch"}, record(cause="")])["cause"] == ""
