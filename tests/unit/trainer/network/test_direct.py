"""Sums over direct connections: each worker a thread here, with real sockets."""

import ctypes
import errno
import io
import select
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from trainer.common.errors import PeerLost
from trainer.network import handshake, sockets_all_reduce

WAIT = 20
SO_ATTACH_FILTER = 26
"""Linux's; Python has no name for it."""


class Meeting:
    """The cluster that exists already: sums an array over threads."""

    def __init__(self, workers):
        self._barrier, self._lock, self._total = threading.Barrier(workers, timeout=WAIT), threading.Lock(), None

    def share(self, table):
        with self._lock:
            self._total = table.copy() if self._total is None else self._total + table
        self._barrier.wait()
        return self._total


def together(workers, work, hosts=None, timeout=WAIT, guarded=False):
    """What `work(connections, rank)` gives on each rank; `guarded`: with connections as scripts have them."""
    meeting, hosts = Meeting(workers), hosts or ["127.0.0.1"] * workers

    def one(rank):
        sockets = handshake.connect(rank, hosts, meeting.share)
        try:
            if guarded:
                handshake._guarded(sockets)
            return work(sockets_all_reduce.Direct(rank, sockets, timeout, hosts, sockets_all_reduce.AHEAD if guarded else None), rank)
        finally:
            for connection in sockets.values():
                connection.close()

    with ThreadPoolExecutor(workers) as pool:
        return [future.result(WAIT) for future in [pool.submit(one, rank) for rank in range(workers)]]


def arrays(rank, sizes, kind=np.float32):
    random = np.random.default_rng(rank)
    return [random.standard_normal(size).astype(kind) for size in sizes]


@pytest.mark.parametrize("shapes", [[5], [5, 3], [200_000], [300_000, 100], [(20, 50, 3), ()]])
def test_sums_stay_as_long_as_somebody_has_them(shapes):
    """With their shapes. Several of the same in a step: TensorFlow reads them when it likes."""

    def work(connections, rank):
        given = [np.zeros(shape, np.float32) for shape in shapes]
        kept = [connections.all_reduce([array + number for array in given]) for number in range(4)]
        values = [sorted({float(value) for array in some for value in np.ravel(array)}) for some in kept]
        memory = [{array.base.ctypes.data for array in some} for some in kept]
        del kept
        again = connections.all_reduce(given)
        assert [array.shape for array in again] == [array.shape for array in given]
        return values, memory[0] == {array.base.ctypes.data for array in again}

    for values, reused in together(2, work):
        assert values == [[2.0 * number] for number in range(4)]
        assert reused


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("sizes", [[7], [3, 0, 10, 1], [1, 1], [100, 3, 28]])
def test_parts_hold_every_element_once_and_evenly(sizes, parts):
    """Parts hold every element once and are equal to within one."""
    actual = sockets_all_reduce._pieces(sizes, parts)
    elements = [(piece.array, index) for part in actual for piece in part for index in range(piece.start, piece.stop)]
    assert elements == [(array, index) for array, size in enumerate(sizes) for index in range(size)]
    counts = [sum(piece.stop - piece.start for piece in part) for part in actual]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize(
    "sizes", [[4], [4, 100, 30], [70_000, 3, 70], [400_000, 1, 33_333]], ids=["tiny", "one hop", "packed", "as they are"]
)
def test_all_get_the_same_right_bits_repeatedly(workers, sizes):
    def work(connections, rank):
        return [[array.copy() for array in connections.all_reduce(arrays(10 * number + rank, sizes))] for number in range(4)]

    results = together(workers, work)
    for number in range(4):
        expected = [
            np.sum(parts, axis=0, dtype=np.float64)
            for parts in zip(*(arrays(10 * number + rank, sizes) for rank in range(workers)), strict=True)
        ]
        for total, *actual in zip(expected, *(result[number] for result in results), strict=True):
            np.testing.assert_allclose(actual[0], total, rtol=1e-5, atol=1e-5)
            assert all(other.tobytes() == actual[0].tobytes() for other in actual)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_summed_in_float32(kind):
    """Half precision is summed in float32 and rounded once."""
    sizes = [70_000, 3]
    actual = together(
        5,
        lambda connections, rank: [array.copy() for array in connections.all_reduce([*arrays(rank, sizes, kind), np.ones(2, np.float32)])],
    )
    for number in range(2):
        expected = np.zeros(sizes[number], np.float32)
        for rank in range(5):
            expected += arrays(rank, sizes, kind)[number].astype(np.float32)
        assert actual[3][number].dtype == kind
        assert actual[3][number].tobytes() == expected.astype(kind).tobytes()
        assert actual[0][2].tolist() == [5, 5]


def test_a_worker_that_ends_is_named():
    def work(connections, rank):
        if rank == 1:
            return None
        with pytest.raises(PeerLost) as caught:
            connections.all_reduce([np.zeros(1_000_000, np.float32)])
        assert connections.lost is caught.value
        return caught.value.rank, str(caught.value)

    assert together(2, work)[0] == (1, "rank 1 (127.0.0.1) closed its connection: it ended")


def test_worker_that_never_comes_is_given_up():
    """A worker that lives but never comes is given up."""
    released = threading.Event()

    def work(connections, rank):
        if rank == 1:
            released.wait(WAIT)
            return None
        with pytest.raises(PeerLost) as caught:
            connections.all_reduce([np.zeros(10, np.float32)])
        released.set()
        return str(caught.value)

    assert together(2, work, timeout=0.2)[0] == "rank 1 (127.0.0.1) sent nothing for 0 s, though its host answers: it hangs, or is frozen"


def cut(connection):
    """Drop all that arrives for a socket before TCP sees it, and ask nothing, so that to the other side its host is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: accept no byte
    connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


@pytest.fixture
def quick(monkeypatch):
    """Hosts that do not answer are gone after 0.3 s, at the earliest after a question."""
    monkeypatch.setattr(handshake, "ANSWER_S", 0.3)
    monkeypatch.setattr(handshake, "IDLE_S", 1)


@pytest.mark.parametrize("waiting", [False, True], ids=["while it is sent to", "while it is waited for"])
def test_vanished_host_is_named(waiting, quick):
    """A host that is gone ends the connection and is named."""
    is_cut, released = threading.Event(), threading.Event()

    def work(connections, rank):
        connection = connections.connections[0]
        if rank == 1:
            if waiting:
                select.select([connection], [], [], WAIT)
            cut(connection)
            is_cut.set()
            released.wait(WAIT)
            return None
        waiting or is_cut.wait(WAIT)
        with pytest.raises(PeerLost) as caught:
            connections.all_reduce([np.zeros(10, np.float32)])
        released.set()
        return str(caught.value)

    assert together(2, work, guarded=True)[0] == "rank 1 (127.0.0.1) stopped answering: it is frozen, or its host or network is gone"


@pytest.mark.parametrize("sizes", [[10], [1_000_000, 3, 5_000_000]], ids=["small", "more than a kernel buffers"])
def test_late_worker_is_named_once_and_awaited(sizes, quick, monkeypatch):
    """A worker that comes late is named once and waited for. It comes when it is named, long after its host would be gone."""
    named = threading.Event()

    class Heard(io.StringIO):
        def write(self, text):
            named.set()
            return super().write(text)

    monkeypatch.setattr(sockets_all_reduce, "LATE_S", 1.0)
    monkeypatch.setattr(sys, "stderr", heard := Heard())

    def work(connections, rank):
        if rank == 1:
            assert named.wait(WAIT)
        return [total.copy() for total in connections.all_reduce(arrays(rank, sizes))]

    results = together(2, work, guarded=True)
    assert heard.getvalue() == "lockstep: waiting for rank 1 (127.0.0.1) for 1 s (at most 20 s)\n"
    for number, total in enumerate(results[0]):
        assert total.tobytes() == results[1][number].tobytes()
        np.testing.assert_allclose(total, arrays(0, sizes)[number] + arrays(1, sizes)[number], rtol=1e-6)


class Broken:
    """A socket whose connection ended with an error."""

    def __init__(self, number):
        self.number = number

    def sendmsg(self, buffers):
        raise OSError(self.number, "ended")


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (errno.ETIMEDOUT, "its host or network is gone"),
        (errno.EHOSTUNREACH, "its host or network is gone"),
        (errno.ENETUNREACH, "its host or network is gone"),
        (errno.ECONNRESET, "it ended"),
        (errno.EPIPE, "it ended"),
    ],
)
def test_error_of_network_is_told_from_end(number, what):
    with pytest.raises(PeerLost, match=rf"^rank 1 .*{what}$"):
        sockets_all_reduce.Direct(0, {1: Broken(number)}, WAIT).all_reduce([np.zeros(1, np.float32)])


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_a_sum_has_the_digits_of_its_type(dtype):
    """In float32, 2**24 + 1 is none."""
    addends = [np.full(3, value, dtype) for value in (2**24 + 1, 2**24 + 1, 1)]
    out = np.empty(3, dtype)
    sockets_all_reduce._add_up(addends, out)
    assert out.tolist() == [2**25 + 3] * 3
