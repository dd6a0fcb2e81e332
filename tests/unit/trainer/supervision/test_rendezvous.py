"""Supervisors meet over real sockets, each a thread."""

import dataclasses
import secrets
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.local.conftest import free_ports
from trainer.errors import RESTART, ClusterError
from trainer.supervision import rendezvous
from trainer.supervision.policy import Decision, Report
from trainer.supervision.rendezvous import Torn, agree, exchange

SECRET = secrets.token_bytes(32)
OWN = Report(1, RESTART, 10, "training", "", 1.0, restarts=0, in_last_hour=0, fruitless=0, reached=-1)


def report(rank):
    return dataclasses.replace(OWN, step=rank)


def by_steps(reports):
    return Decision(2, 0.0, 0, sum(one.step for one in reports.values()), " ".join(map(str, sorted(reports))))


def meeting(workers, decide=lambda rank: by_steps, secret=lambda rank: SECRET, wait=10.0):
    addresses = [("127.0.0.1", port) for port in free_ports(workers)]

    def one(rank):
        return agree(rank, addresses, secret(rank), report(rank), decide(rank), wait)

    with ThreadPoolExecutor(workers) as pool:
        return [pool.submit(one, rank) for rank in range(workers)]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_all_see_all_reports_and_decide_the_same(workers):
    decisions = {one.result() for one in meeting(workers)}
    assert decisions == {Decision(2, 0.0, 0, sum(range(workers)), " ".join(map(str, range(workers))))}


def test_nobody_goes_on_if_one_decides_otherwise():
    def decide(rank):
        return by_steps if rank else lambda reports: dataclasses.replace(by_steps(reports), generation=3)

    outcomes = meeting(3, decide)
    assert any(isinstance(one.exception(), Torn) for one in outcomes)
    assert isinstance(outcomes[0].exception(), Torn)


def test_a_stranger_without_the_secret_is_no_supervisor():
    outcomes = meeting(2, secret=lambda rank: SECRET if rank else secrets.token_bytes(32), wait=0.5)
    for rank, one in enumerate(outcomes):
        assert isinstance(one.exception(), ClusterError)
        assert f"rank {rank}: no connection within" in str(one.exception())


def test_who_does_not_come_is_named():
    addresses = [("127.0.0.1", port) for port in free_ports(2)]
    with pytest.raises(ClusterError, match=r"no connection within 0 s with rank 1 \(127\.0\.0\.1 port \d+\)"):
        agree(0, addresses, SECRET, OWN, by_steps, 0.3)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "rank 1 closed its connection"),
        (b"\0\0", "rank 1 closed its connection"),
        (b"\0\0\0\5abc", "rank 1 closed its connection"),
        (b"\xff\xff\xff\xff", "rank 1 announced 4,294,967,295 bytes"),
    ],
)
def test_a_torn_report(sent, words):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(Torn, match=words):
            exchange({1: ours}, b"report")


def test_a_silent_supervisor_does_not_hold_up_the_others_for_ever(monkeypatch):
    monkeypatch.setattr(rendezvous, "ANSWER_S", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(Torn, match=r"rank 1: timed out"):
        exchange({1: ours}, b"report")
