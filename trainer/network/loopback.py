"""The work that the direct exchange of a step is for one worker, without the others: measured alone, for a prediction."""

import collections
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.network.sockets_all_reduce import Arrays, Direct

PATIENCE_S = 60.0
FEWEST_ROUNDS = 3


class Echo(Direct):
    """Returns every array as it is, as if this worker's were the sums: nothing is sent."""

    def __init__(self, sums: int):
        """Expect `sums` all-reduces per step."""
        super().__init__(0, {}, PATIENCE_S)
        self._formats: collections.deque[list[tuple[tuple[int, ...], np.dtype[Any]]]] = collections.deque(maxlen=sums)

    def all_reduce(self, arrays: Sequence[np.ndarray]) -> Arrays:
        """Copies of the arrays."""
        self._formats.append([(array.shape, array.dtype) for array in arrays])
        return [np.array(array, order="C") for array in arrays]

    def step(self) -> list[Arrays]:
        """Arrays like those of the last step's all-reduces, in order."""
        return [[np.ones(shape, kind) for shape, kind in formats] for formats in self._formats]


class Loopback(Direct):
    """Sends each peer's part to itself, over a TCP connection per peer: the system calls, copies and additions of an exchange."""

    def __init__(self, workers: int):
        """Open the connections; `close` ends them."""
        super().__init__(0, {rank: _to_itself() for rank in range(1, workers)}, PATIENCE_S)

    def close(self) -> None:
        """End the connections."""
        for connection in self._sockets.values():
            connection.close()

    def _swap(self, out: dict[int, Arrays], into: dict[int, Arrays]) -> None:
        # What a worker receives of a peer differs by an element at most from what it sends to itself.
        super()._swap(out, {peer: [np.empty_like(array) for array in arrays] for peer, arrays in out.items()})
        for arrays in into.values():
            for array in arrays:
                array.fill(0)


def _to_itself() -> socket.socket:
    """A TCP connection from a port of this host to the same port: what is sent on it arrives on it (RFC 9293, simultaneous open)."""
    connection = socket.socket()
    connection.bind(("127.0.0.1", 0))
    connection.connect(connection.getsockname())
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


def exchange_seconds(sums: Sequence[Arrays], workers: int, seconds: float) -> float:
    """Mean seconds of one worker's work for the all-reduces of a step, measured for at least `seconds`; 0 for one worker."""
    if workers == 1 or not sums:
        return 0.0
    connections = Loopback(workers)
    try:
        _all(connections, sums)
        rounds, begun = 0, time.perf_counter()
        while rounds < FEWEST_ROUNDS or time.perf_counter() - begun < seconds:
            _all(connections, sums)
            rounds += 1
        return (time.perf_counter() - begun) / rounds
    finally:
        connections.close()


def _all(connections: Direct, sums: Sequence[Arrays]) -> None:
    for arrays in sums:
        connections.all_reduce(arrays)
