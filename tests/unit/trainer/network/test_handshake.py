"""Workers find each other whatever strangers do at their ports: real sockets, each worker a thread."""

import asyncio
import contextlib
import functools
import queue
import secrets
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.ports import free_ports
from tests.unit.trainer.network.test_direct import WAIT, Meeting
from trainer.common.errors import ClusterError
from trainer.network import handshake, sockets_all_reduce

QUICK_S = 3.0
"""Far less than a stranger may take, far more than the handshakes of some threads."""


class Strangers:
    """Threads that keep connecting to a port; what each does with a connection is `act`."""

    def __init__(self, port, count, act, clock):
        self._over, self._place = threading.Event(), ("127.0.0.1", port)
        self._came = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._again_and_again, args=(act,), daemon=True) for _ in range(count)]
        for thread in self._threads:
            clock.leave_out(thread)
            thread.start()
        for _ in range(count):
            assert self._came.acquire(timeout=WAIT)

    def _again_and_again(self, act):
        while not self._over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(self._place, WAIT) as connection:
                self._came.release()
                act(connection, self._over)

    def leave(self):
        self._over.set()
        for thread in self._threads:
            thread.join(WAIT)


def idle(connection, over):
    """Wait for the other side to hang up, then come again."""
    connection.settimeout(0.05)
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            if not connection.recv(1024):
                return


def drip(connection, over):
    """A byte of a call now and then."""
    while not over.wait(0.2):
        connection.sendall(b"\0")


def flood(connection, over):
    """Leave at once."""


def wrong_secret(connection, over):
    """A whole call of rank 1 that proves nothing."""
    connection.settimeout(WAIT)
    connection.recv(handshake.SECRET)
    connection.sendall(handshake.CALL.pack(1, *(secrets.token_bytes(handshake.SECRET) for _ in range(2))))
    assert connection.recv(1) == b"", "let in without the secret"


def meet(clock, workers, knock, port=0):
    """What `all_reduce` of ones gives on each rank, and the clock's seconds from `knock(table)` on rank 1 until all were connected."""
    meeting, took = Meeting(workers), []

    def share_after(table):
        table = meeting.share(table)
        knock(table)
        took.append(clock.monotonic())
        return table

    def one(rank):
        share = share_after if rank == 1 else meeting.share
        sockets = handshake.connect(rank, ["127.0.0.1"] * workers, share, port if rank == 0 else 0, clock)
        try:
            took.append(clock.monotonic())
            return (
                sockets_all_reduce.Direct(rank, sockets, WAIT)
                .all_reduce([sockets_all_reduce.np.ones(3, sockets_all_reduce.np.float32)])[0]
                .tolist()
            )
        finally:
            for connection in sockets.values():
                connection.close()

    sums = clock.together(*(functools.partial(one, rank) for rank in range(workers)))
    return sums, max(took) - min(took)


@pytest.mark.parametrize(("count", "act"), [(8, idle), (8, drip), (8, wrong_secret), (2, flood), (200, idle)])
def test_strangers_do_not_keep_workers_from_each_other(count, act, clock):
    crowds = []

    def knock(table):
        crowds.extend(Strangers(int(port), count, act, clock) for port in table[:2, 0])

    try:
        sums, seconds = meet(clock, 3, knock)
    finally:
        for crowd in crowds:
            crowd.leave()
    assert sums == [[3, 3, 3]] * 3
    assert seconds < QUICK_S


@pytest.mark.parametrize("act", [idle, drip, flood])
def test_the_deadline_holds_while_strangers_keep_connecting(act, clock):
    crowds, begun = [], []

    def share(table):
        crowds.append(Strangers(int(table[0, 0]), 8, act, clock))
        begun.append(clock.monotonic())
        return table

    try:
        with pytest.raises(ClusterError, match=r"^rank 0: no connection within 60 s with rank 1 \(10\.0\.0\.2 port 0\), rank 2 "):
            handshake.connect(0, ["127.0.0.1", "10.0.0.2", "10.0.0.3"], share, clock=clock)
        assert clock.monotonic() - begun[0] == pytest.approx(handshake.DEADLINE_S)
    finally:
        for crowd in crowds:
            crowd.leave()


def call(place, secret, rank):
    """A connection of `rank` that rank 0 has accepted, and the bytes of its call."""
    connection = socket.create_connection(place, WAIT)
    theirs, own = connection.recv(handshake.SECRET), secrets.token_bytes(handshake.SECRET)
    shown = handshake.CALL.pack(rank, own, handshake._hmac(secret, b"call", theirs, own, rank, 0))
    connection.sendall(shown)
    assert connection.recv(handshake.SECRET) == handshake._hmac(secret, b"answer", theirs, own, rank, 0)
    return connection, shown


def test_a_call_that_was_overheard_opens_no_second_connection():
    """Who sends all bytes of a proof again, on a connection of its own, is turned away."""
    tables = queue.Queue()

    def share(table):
        tables.put(table)
        return table

    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        listening = pool.submit(handshake.connect, 0, ["127.0.0.1"] * 3, share)
        table = tables.get(timeout=WAIT)
        place, secret = ("127.0.0.1", int(table[0, 0])), table[0, 1:].tobytes()
        first, shown = call(place, secret, 1)
        again = stack.enter_context(socket.create_connection(place, WAIT))
        again.recv(handshake.SECRET)
        again.sendall(shown)
        assert again.recv(1) == b""
        second, _ = call(place, secret, 2)
        sockets = listening.result(WAIT)
        for connection in (first, second, *sockets.values()):
            stack.enter_context(connection)
        assert [sockets[peer].getpeername() for peer in (1, 2)] == [first.getsockname(), second.getsockname()]


def test_a_listener_that_does_not_know_the_secret_is_not_believed(clock):
    """Somebody else answers at the port of rank 0: nothing is sent to it."""
    received = []

    def lie(server):
        # The end of the server's socket ends it.
        with contextlib.suppress(OSError, ValueError):
            while clock.select([server], None):
                connection, _ = server.accept()
                for _ in range(2):
                    connection.sendall(secrets.token_bytes(handshake.SECRET))
                    clock.select([connection], None)
                    received.append(connection.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lie, args=(server,), daemon=True).start()

        def share(table):
            table[0, 0] = server.getsockname()[1]
            return table

        with pytest.raises(ClusterError, match=r"^rank 1: no connection within 60 s with rank 0 \(127\.0\.0\.1 port \d+\)"):
            handshake.connect(1, ["127.0.0.1"] * 2, share, clock=clock)
    assert {len(data) for data in received[0::2]} == {handshake.CALL.size}
    assert set(received[1::2]) <= {b""}


def test_a_worker_listens_on_its_own_port_also_right_after_an_earlier_launch(clock):
    (port,) = free_ports(1)
    seen = []
    for _ in range(2):
        assert meet(clock, 2, lambda table: seen.append(int(table[0, 0])), port)[0] == [[2, 2, 2]] * 2
    assert seen == [port, port]


def test_a_port_that_is_taken_is_named_with_the_mend():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError) as caught:
            handshake.connect(1, ["127.0.0.1"] * 2, lambda table: table, port)
    assert str(caught.value) == (
        f"rank 1 can't listen on 127.0.0.1 port {port} for the other workers (Address already in use); "
        "end the program that holds it, or set worker_direct_port in the inventory"
    )


def test_a_worker_that_cannot_be_reached_is_named_with_the_mend():
    (port,) = free_ports(1)

    def share(table):
        table[:, 0] = port
        return table

    with pytest.raises(ClusterError) as caught:
        handshake.connect(1, ["127.0.0.1"] * 2, share)
    message = str(caught.value)
    assert message.startswith(f"rank 1 can't reach rank 0 at 127.0.0.1 port {port} (")
    assert message.endswith("or send through TensorFlow's port alone with -e set=reduction.transport=tensorflow")


def test_a_listener_that_hangs_up_is_called_again():
    """Who was dropped to make room comes again."""
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as server:

        def answer(secret):
            for last in (False, True):
                connection, _ = server.accept()
                with connection:
                    own = secrets.token_bytes(handshake.SECRET)
                    connection.sendall(own)
                    rank, theirs, _ = handshake.CALL.unpack(connection.recv(handshake.CALL.size))
                    if last:
                        connection.sendall(handshake._hmac(secret, b"answer", own, theirs, rank, 0))
            return struct.pack("!i", rank)

        calls = []

        def share(table):
            table[0] = [server.getsockname()[1], *range(8)]
            calls.append(pool.submit(answer, table[0, 1:].tobytes()))
            return table

        handshake.connect(1, ["127.0.0.1"] * 2, share)[0].close()
        assert calls[0].result(WAIT) == struct.pack("!i", 1)


def test_workers_that_know_a_secret_meet_though_they_start_at_different_times(clock):
    ports, secret = free_ports(3), secrets.token_bytes(32)
    addresses = [("127.0.0.1", port) for port in ports]

    def come(rank):
        clock.sleep(100.0 * (2 - rank))
        return handshake.meet(rank, addresses, secret, 300.0, clock)

    sockets = clock.together(*(functools.partial(come, rank) for rank in range(3)))
    try:
        assert [sorted(connected) for connected in sockets] == [[1, 2], [0, 2], [0, 1]]
    finally:
        for connected in sockets:
            for connection in connected.values():
                connection.close()


def test_a_worker_with_another_secret_does_not_get_in(clock):
    addresses = [("127.0.0.1", port) for port in free_ports(2)]
    both = clock.together(*(functools.partial(handshake.meet, rank, addresses, secrets.token_bytes(32), 20.0, clock) for rank in range(2)))
    for rank, error in enumerate(both):
        assert isinstance(error, ClusterError)
        assert f"rank {rank}: no connection within 20 s with rank {1 - rank}" in str(error)


def test_a_flood_drops_the_flooding_hosts_oldest_caller():
    """When more strangers call at once than a listener can hear."""

    async def dropped():
        listener = handshake._Listener(0, None, b"", [1], {})
        addresses = ["10.0.0.2", "10.0.0.9", "10.0.0.9", "10.0.0.3", "10.0.0.9"]
        callers = [asyncio.ensure_future(asyncio.Event().wait()) for _ in addresses]
        listener._pending.update(zip(callers, addresses, strict=True))
        listener._drop_one()
        await asyncio.sleep(0)
        gone = [number for number, caller in enumerate(callers) if caller.cancelled()]
        assert list(listener._pending.values()) == ["10.0.0.2", "10.0.0.9", "10.0.0.3", "10.0.0.9"]
        for caller in callers:
            caller.cancel()
        return gone

    assert asyncio.run(dropped()) == [1]
