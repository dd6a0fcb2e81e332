"""What the workers exchange outside a step; the collectives themselves are tested by real runs."""

from types import SimpleNamespace

import numpy as np

from trainer.agreement import digest
from trainer.cluster import Cluster

MINE = [np.array([[1.5, -0.0]], np.float32), np.array([3], np.int64)]


def received(digests, chief):
    """What a worker that is not the chief has after `from_chief`, and how many numbers it sent."""
    bits = np.frombuffer(b"".join(array.tobytes() for array in chief), np.int32)
    sent = []

    def total(values):
        sent.append(values)
        return values + bits

    cluster = SimpleNamespace(member=SimpleNamespace(is_chief=False), sum=total, digests=lambda own: [own, *digests])
    return Cluster.from_chief(cluster, MINE), sent


class TestFromTheChief:
    def test_nothing_is_sent_if_all_have_the_same(self):
        values, sent = received([digest(MINE)] * 2, MINE)
        assert (digest(values), sent) == (digest(MINE), [])

    def test_one_other_worker_is_enough_to_send(self):
        chief = [np.array([[np.nan, 7.0]], np.float32), np.array([5], np.int64)]
        values, sent = received([digest(MINE), digest(chief)], chief)
        assert digest(values) == digest(chief)
        assert [array.dtype for array in values] == [array.dtype for array in MINE]
        assert len(sent) == 1
        assert not sent[0].any()
