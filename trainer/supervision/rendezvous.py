"""How the supervisors of a run agree on what happens next, while none of its workers runs.

They meet on the workers' direct ports, which are free then, and prove to each other that they know the launch's secret. Each sends its
report to all, decides by itself from all reports, and goes on only if all have decided the same.
"""

import contextlib
import dataclasses
import hashlib
import json
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

from trainer import handshake
from trainer.errors import ClusterError
from trainer.supervision.policy import Decision, Report

LENGTH = struct.Struct("!I")
LARGEST = 2**16
"""Bytes of a report."""
ANSWER_S = 10.0
"""Seconds within which a supervisor that has come must send its report."""
Address = tuple[str, int]


class Torn(ClusterError):
    """A supervisor left while all were deciding; they meet again."""


def agree(
    rank: int, addresses: Sequence[Address], secret: bytes, own: Report, decide: Callable[[Mapping[int, Report]], Decision], wait: float
) -> Decision:
    """What all supervisors have decided.

    Args:
        rank: this supervisor's.
        addresses: where all workers listen for each other, by rank.
        secret: what only this launch knows.
        own: this supervisor's report.
        decide: gives the same from the same reports.
        wait: seconds within which all must come.

    Raises:
        ClusterError: not all came.
        Torn: one came, and left before all had decided.
    """
    sockets = handshake.meet(rank, addresses, hashlib.sha256(b"supervisors" + secret).digest(), wait)
    try:
        reports = {rank: own} | {peer: Report.from_bytes(data) for peer, data in exchange(sockets, own.to_bytes()).items()}
        decision = decide(reports)
        digest = hashlib.sha256(json.dumps(dataclasses.asdict(decision)).encode()).digest()
        if other := [peer for peer, data in exchange(sockets, digest).items() if data != digest]:
            raise Torn(f"rank {other[0]} decided otherwise")
        return decision
    finally:
        for connection in sockets.values():
            connection.close()


def exchange(sockets: Mapping[int, socket.socket], data: bytes) -> dict[int, bytes]:
    """Send the same bytes to all peers, and return what each sent."""
    for peer, connection in sockets.items():
        connection.settimeout(ANSWER_S)
        with _talking_to(peer):
            connection.sendall(LENGTH.pack(len(data)) + data)
    return {peer: _receive(peer, connection) for peer, connection in sockets.items()}


def _receive(peer: int, connection: socket.socket) -> bytes:
    (length,) = LENGTH.unpack(_read(peer, connection, LENGTH.size))
    if length > LARGEST:
        raise Torn(f"rank {peer} announced {length:,} bytes")
    return _read(peer, connection, length)


def _read(peer: int, connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        with _talking_to(peer):
            part = connection.recv(count - len(data))
        if not part:
            raise Torn(f"rank {peer} closed its connection")
        data += part
    return data


@contextlib.contextmanager
def _talking_to(peer: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Torn(f"rank {peer}: {error.strerror or error}") from None
