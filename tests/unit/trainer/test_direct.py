"""Sums over direct connections: each worker a thread here, with real sockets."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from trainer import direct, handshake
from trainer.errors import PeerLost

WAIT = 20


class Meeting:
    """The cluster that exists already: sums an array over threads."""

    def __init__(self, workers):
        self._barrier, self._lock, self._total = threading.Barrier(workers, timeout=WAIT), threading.Lock(), None

    def share(self, table):
        with self._lock:
            self._total = table.copy() if self._total is None else self._total + table
        self._barrier.wait()
        return self._total


def together(workers, work, hosts=None, timeout=WAIT):
    """What `work(connections, rank)` gives on each rank."""
    meeting = Meeting(workers)

    def one(rank):
        sockets = handshake.connect(rank, hosts or ["127.0.0.1"] * workers, meeting.share)
        try:
            return work(direct.Direct(rank, sockets, timeout), rank)
        finally:
            for connection in sockets.values():
                connection.close()

    with ThreadPoolExecutor(workers) as pool:
        return [future.result(WAIT) for future in [pool.submit(one, rank) for rank in range(workers)]]


def arrays(rank, sizes, kind=np.float32):
    random = np.random.default_rng(rank)
    return [random.standard_normal(size).astype(kind) for size in sizes]


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("sizes", [[7], [3, 0, 10, 1], [1, 1], [100, 3, 28]])
def test_parts_hold_every_element_once_and_are_equal_to_within_one(sizes, parts):
    found = direct.pieces(sizes, parts)
    elements = [(piece.array, index) for part in found for piece in part for index in range(piece.start, piece.stop)]
    assert elements == [(array, index) for array, size in enumerate(sizes) for index in range(size)]
    counts = [sum(piece.stop - piece.start for piece in part) for part in found]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize(
    "sizes", [[4], [4, 100, 30], [70_000, 3, 70], [400_000, 1, 33_333]], ids=["tiny", "one hop", "packed", "as they are"]
)
def test_all_get_the_same_bits_and_the_right_sum_again_and_again(workers, sizes):
    def work(connections, rank):
        return [[array.copy() for array in connections.all_reduce(arrays(10 * number + rank, sizes))] for number in range(4)]

    results = together(workers, work)
    for number in range(4):
        expected = [
            np.sum(parts, axis=0, dtype=np.float64)
            for parts in zip(*(arrays(10 * number + rank, sizes) for rank in range(workers)), strict=True)
        ]
        for total, *found in zip(expected, *(result[number] for result in results), strict=True):
            np.testing.assert_allclose(found[0], total, rtol=1e-5, atol=1e-5)
            assert all(other.tobytes() == found[0].tobytes() for other in found)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_summed_in_float32_and_rounded_once(kind):
    sizes = [70_000, 3]
    found = together(
        5,
        lambda connections, rank: [array.copy() for array in connections.all_reduce([*arrays(rank, sizes, kind), np.ones(2, np.float32)])],
    )
    for number in range(2):
        expected = np.zeros(sizes[number], np.float32)
        for rank in range(5):
            expected += arrays(rank, sizes, kind)[number].astype(np.float32)
        assert found[3][number].dtype == kind
        assert found[3][number].tobytes() == expected.astype(kind).tobytes()
        assert found[0][2].tolist() == [5, 5]


def test_shapes_stay_and_what_one_call_gives_outlives_the_next():
    def work(connections, rank):
        first = connections.all_reduce([np.full((20, 50, 3), rank, np.float32), np.float32(rank)])
        second = connections.all_reduce([np.full((20, 50, 3), 10 + rank, np.float32), np.float32(1)])
        return [array.copy() for array in first + second]

    cube, scalar, *later = together(2, work)[1]
    assert (cube.shape, scalar.shape) == ((20, 50, 3), ())
    assert (np.unique(cube).tolist(), float(scalar)) == ([1], 1)
    assert (np.unique(later[0]).tolist(), float(later[1])) == ([21], 2)


@pytest.mark.parametrize(("size", "expected"), [(1000, 4 * 1000 * 4), (1_000_000, 2 * 4 * 200_000 * 4)], ids=["one hop", "two hops"])
def test_bytes_are_counted(size, expected):
    def work(connections, rank):
        connections.all_reduce([np.zeros(size, np.float32)])
        return connections.bytes_sent

    assert together(5, work) == [expected] * 5


def test_a_worker_that_ends_is_named_at_once():
    def work(connections, rank):
        if rank == 1:
            return None
        begun = time.monotonic()
        with pytest.raises(PeerLost) as caught:
            connections.all_reduce([np.zeros(1_000_000, np.float32)])
        assert connections.lost is caught.value
        return caught.value.rank, str(caught.value), time.monotonic() - begun < 5

    found = together(2, work)[0]
    assert found[0] == 1
    assert found[1].startswith(("rank 1 closed its connection: it ended", "the connection to rank 1 broke"))
    assert found[2]


def test_a_worker_that_lives_but_never_comes_is_given_up():
    released = threading.Event()

    def work(connections, rank):
        if rank == 1:
            released.wait(WAIT)
            return None
        with pytest.raises(PeerLost) as caught:
            connections.all_reduce([np.zeros(10, np.float32)])
        released.set()
        return str(caught.value)

    assert together(2, work, timeout=0.2)[0] == "rank 1 sent nothing for 0 s, though it lives"
