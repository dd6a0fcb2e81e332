"""One worker's part of an exchange, with real sockets."""

import contextlib

import numpy as np
import pytest

from trainer.network import loopback
from trainer.network.sockets_all_reduce import Direct

SUMS = [[np.ones((300, 7), np.float32), np.ones(5, np.float32)], [np.ones(200_001, np.float32)]]


def test_an_echo_returns_copies_and_remembers_a_step():
    echo = loopback.Echo(2)
    for number in range(3):
        first = echo.all_reduce([np.full(3, number, np.float32)])
        second = echo.all_reduce([np.full((2, 2), number, np.float32), np.zeros(1, np.float32)])
    assert first[0].tolist() == [2, 2, 2]
    assert second[0].tolist() == [[2, 2], [2, 2]]
    assert [[array.shape for array in arrays] for arrays in echo.step()] == [[(3,)], [(2, 2), (1,)]]
    given = np.ones(3, np.float32)
    assert not np.shares_memory(echo.all_reduce([given])[0], given)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_loopback_sends_as_many_bytes_as_exchange(workers):
    """Two hops of 2 (n - 1) / n of the bytes, to within one element per peer; small sums go whole."""
    connections = loopback.Loopback(workers)
    try:
        for arrays in SUMS:
            results = connections.all_reduce(arrays)
            assert [one.shape for one in results] == [one.shape for one in arrays]
            assert all(np.isfinite(one).all() for one in results)
    finally:
        connections.close()
    small, large = (sum(array.nbytes for array in arrays) for arrays in SUMS)
    expected = small * (workers - 1) + large * 2 * (workers - 1) / workers
    # Packed arrays begin at multiples of 64 bytes.
    assert connections.bytes_sent == pytest.approx(expected, abs=200 * workers)


@pytest.mark.parametrize("fails", [False, True])
def test_it_opens_connection_per_peer_and_closes_all(monkeypatch, fails):
    sockets, all_reduce = {}, Direct.all_reduce

    def exchanged(connections, arrays):
        sockets.update(connections._sockets)
        return 1 / 0 if fails else all_reduce(connections, arrays)

    monkeypatch.setattr(Direct, "all_reduce", exchanged)
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        assert loopback.exchange_seconds(SUMS, 4, 0.01) > 0
    assert [connection.fileno() for connection in sockets.values()] == [-1] * 3


@pytest.mark.parametrize(("sums", "workers"), [(SUMS, 1), ([], 5)])
def test_nothing_to_exchange(sums, workers):
    assert loopback.exchange_seconds(sums, workers, 0.01) == 0.0
