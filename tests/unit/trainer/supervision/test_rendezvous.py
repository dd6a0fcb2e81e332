"""Supervisors meet over real sockets, each a thread."""

import dataclasses
import functools
import json
import secrets
import socket
import threading

import pytest

from tests.ports import free_ports
from trainer.common.errors import RESTART, ClusterError
from trainer.supervision import rendezvous
from trainer.supervision.rendezvous import ConnectionLoss, Start, agree, exchange
from trainer.supervision.restart_policy import Decision, Report

SECRET = secrets.token_bytes(32)
OWN = Report(1, RESTART, 10, "training", "", 1.0, restarts=0, in_last_hour=0, fruitless=0, reached=-1, members=[0, 1])


def report(rank):
    return dataclasses.replace(OWN, step=rank)


def never(_):
    """All must be there."""
    return False


def by_steps(reports):
    return Decision(2, 0.0, 0, sum(one.step for one in reports.values()), sorted(reports), 1, "why")


def meeting(clock, workers, decide=lambda rank: by_steps, secret=lambda rank: SECRET, wait=10.0, there=None, enough=never):
    """What each supervisor decides, or raises."""
    addresses = [("127.0.0.1", port) for port in free_ports(workers)]

    def one(rank):
        decision, start = agree(rank, addresses, secret(rank), report(rank), decide(rank), wait, enough, clock)
        start.close(trains=True)
        return decision

    return clock.together(*(functools.partial(one, rank) for rank in there or range(workers)))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_all_see_all_reports_and_decide_the_same(workers, clock):
    expected = Decision(2, 0.0, 0, sum(range(workers)), [*range(workers)], 1, "why")
    assert meeting(clock, workers) == [expected] * workers


@pytest.mark.parametrize("there", [(0, 2), (1, 2), (2, 3, 4)])
def test_those_that_are_there_go_on_if_they_are_enough(there, clock):
    outcomes = meeting(clock, 5, there=there, enough=lambda ranks: len(ranks) == len(there))
    assert [one.members for one in outcomes] == [list(there)] * len(there)


def test_who_leaves_while_the_others_wait_is_not_there(clock):
    """The leader goes on with a third that comes later, and is not held up by the second that left."""
    addresses = [("127.0.0.1", port) for port in free_ports(3)]

    class Departure(Exception):
        pass

    def leave(ranks):
        if len(ranks) == 2:
            raise Departure

    def enough(ranks):
        return set(ranks) == {0, 2}

    def one(rank, enough):
        return agree(rank, addresses, SECRET, report(rank), by_steps, 10.0, enough, clock)[0]

    left = threading.Event()

    def second():
        with pytest.raises(Departure):
            one(1, leave)
        left.set()

    def third():
        clock.wait(left, 60.0)
        return one(2, never)

    decided = clock.together(lambda: one(0, enough), second, third)
    assert left.is_set()
    assert decided[0].members == decided[2].members == [0, 2]


def starts(workers):
    """The `Start` of each of several supervisors, by rank; rank 0 leads."""
    pairs = [socket.socketpair() for _ in range(1, workers)]
    leader = Start({rank: ours for rank, (ours, _) in enumerate(pairs, 1)})
    return [leader, *(Start({0: theirs}) for _, theirs in pairs)]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_who_trains_leaves_a_start_without_harm(first):
    run = starts(3)
    for rank in (first, *({0, 1, 2} - {first})):
        assert not any(one.is_lost() for one in run)
        run[rank].close(trains=True)
    assert not any(one.is_lost() for one in run)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_who_leaves_a_start_before_it_trains_is_missed_by_all(gone):
    run = starts(3)
    run[gone].close(trains=False)
    if gone:
        assert run[0].is_lost()
        assert not run[3 - gone].is_lost(), "only the leader knows"
        run[0].close(trains=False)
    assert all(run[rank].is_lost() for rank in {1, 2} - {gone})


def test_a_connection_that_breaks_is_a_lost_start():
    ours, theirs = socket.socketpair()
    start = Start({1: ours})
    theirs.send(b"?")
    assert start.is_lost()
    ours.close()
    assert start.is_lost()


def table(*steps):
    """A leader's message with the report of each rank of `steps`, which are pairs of rank and step."""
    return json.dumps({rank: dataclasses.asdict(report(step)) for rank, step in steps}).encode()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (table((0, 0), (1, 7)), "rank 0 sent another report of rank 1"),
        (table((0, 0), (1, 1), (3, 3)), "rank 0 sent reports of other ranks than the 3 of the launch"),
        *((data, "rank 0 sent no reports") for data in (b"", b"[]", b"7", b'{"x": {}}')),
    ],
)
def test_a_leader_is_believed_only_what_can_be(sent, why):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for message in (report(0).to_bytes(), sent):
            theirs.sendall(rendezvous.LENGTH.pack(len(message)) + message)
        with pytest.raises(ConnectionLoss, match=why):
            rendezvous._reports(1, 3, {0: ours}, report(1))


def test_nobody_goes_on_if_one_decides_otherwise(clock):
    def decide(rank):
        return by_steps if rank else lambda reports: dataclasses.replace(by_steps(reports), generation=3)

    assert all(isinstance(one, ConnectionLoss) for one in meeting(clock, 3, decide))


def test_a_stranger_without_the_secret_is_no_supervisor(clock):
    outcomes = meeting(clock, 2, secret=lambda rank: SECRET if rank else secrets.token_bytes(32))
    for rank, one in enumerate(outcomes):
        assert isinstance(one, ClusterError)
        assert f"rank {rank}: no connection within 10 s" in str(one)


def test_who_does_not_come_is_named(clock):
    addresses = [("127.0.0.1", port) for port in free_ports(2)]
    with pytest.raises(ClusterError, match=r"no connection within 300 s with rank 1 \(127\.0\.0\.1 port \d+\)"):
        agree(0, addresses, SECRET, OWN, by_steps, 300.0, never, clock)


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
        with pytest.raises(ConnectionLoss, match=words):
            exchange({1: ours}, b"report")


def test_a_silent_supervisor_does_not_hold_up_the_others_for_ever(clock):
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ConnectionLoss, match=r"rank 1: timed out"):
        exchange({1: ours}, b"report", clock)
