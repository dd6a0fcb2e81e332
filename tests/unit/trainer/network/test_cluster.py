"""How a worker waits for the first one, before it joins TensorFlow's cluster."""

import socket

import pytest

from trainer.network import cluster
from trainer.network.member import Member


class Time:
    """Passes only in `sleep`; after some of these, the first worker listens."""

    def __init__(self, port, listens_after):
        self.slept, self._port, self._listens_after = 0.0, port, listens_after
        self.leader = socket.socket()

    def monotonic(self):
        return self.slept

    def sleep(self, seconds):
        self.slept += seconds
        if self._listens_after is not None and self.slept >= self._listens_after:
            self.leader.bind(("127.0.0.1", self._port))
            self.leader.listen()


@pytest.mark.parametrize(
    ("rank", "listens_after", "slept"),
    [(0, None, 0.0), (1, 0.02, 0.02), (2, 0.02, 0.02), (1, None, cluster.LEADER_S)],
    ids=["the first worker", "the second", "the third", "for ever"],
)
def test_workers_wait_until_the_first_listens(rank, listens_after, slept, port, monkeypatch):
    """For ever: TensorFlow then says what is missing."""
    time = Time(port, listens_after)
    monkeypatch.setattr(cluster, "time", time)
    with time.leader:
        cluster._await_leader(Member(rank, [f"127.0.0.1:{port}", "127.0.0.1:1", "127.0.0.1:2"]))
    assert time.slept == pytest.approx(slept, abs=0.011)
