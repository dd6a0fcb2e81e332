"""Doors and visits over real sockets, each a thread."""

import contextlib
import secrets
import socket
import threading

import pytest

from tests.ports import free_ports
from trainer.supervision.rejoin import FINISHED, Admission, EntryPort, EntryRequest, RunEnd

SECRET = secrets.token_bytes(32)


@pytest.fixture
def addresses():
    return [("127.0.0.1", port) for port in free_ports(3)]


class Asked:
    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1


def is_let_in(visit):
    try:
        visit.check()
    except Admission:
        return True
    return False


@pytest.mark.parametrize(("absent", "keeper"), [(2, 0), (0, 2)])
def test_a_lost_host_waits_behind_the_door(absent, keeper, addresses, clock):
    """Of any rank, until the generation ends."""
    asked = Asked()
    with EntryRequest(absent, addresses, SECRET, clock) as visit:
        door = EntryPort(keeper, addresses, SECRET, {absent}, asked, clock)
        clock.until(lambda: is_let_in(visit), "the door")
        clock.until(lambda: door.newcomers == {absent}, "the newcomer")
        waiting = threading.Thread(target=visit.wait, daemon=True)
        waiting.start()
        clock.sleep(60.0)
        assert waiting.is_alive()
        door.close()
        clock.join(waiting)
    assert asked.times == 1


def test_who_waits_is_told_of_the_end(addresses, clock):
    with EntryRequest(1, addresses, SECRET, clock) as visit:
        door = EntryPort(0, addresses, SECRET, {1}, Asked(), clock)
        clock.until(lambda: door.newcomers, "the newcomer")
        clock.until(lambda: is_let_in(visit), "the door")
        door.close(FINISHED)
        with pytest.raises(RunEnd):
            visit.wait()


@pytest.mark.parametrize(("rank", "secret"), [(1, bytes(32)), (2, SECRET)], ids=["stranger", "present"])
def test_only_absent_hosts_are_let_in(rank, secret, addresses, clock):
    """Neither a stranger nor a host that is present."""
    asked = Asked()
    door = EntryPort(0, addresses, SECRET, {1}, asked, clock)
    callers = []

    def connects():
        with contextlib.suppress(ConnectionRefusedError):
            if not callers:
                callers.append(socket.create_connection(addresses[0]))
        return callers

    clock.until(connects, "the door")
    with EntryRequest(rank, addresses, secret, clock) as visit, callers[0] as other:
        assert other.recv(1), "the door listens"
        clock.sleep(60.0)
        assert not door.newcomers
        if secret != SECRET:
            visit.check()
    door.close()
    assert asked.times == 0


def test_a_door_opens_once_its_port_is_free(addresses, clock):
    with socket.create_server(addresses[0]):
        door = EntryPort(0, addresses, SECRET, {1}, Asked(), clock)
    with EntryRequest(1, addresses, SECRET, clock):
        clock.until(lambda: door.newcomers == {1}, "the newcomer")
    door.close()


def test_a_visit_to_nobody_ends_with_its_context(addresses, clock):
    with EntryRequest(1, addresses, SECRET, clock) as visit:
        visit.check()
    assert not visit.is_alive()
