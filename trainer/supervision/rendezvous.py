"""Agreement of a run's supervisors on the next action, while none of its workers runs.

They meet on the workers' direct ports, which are free then, and prove to each other that they have the launch's secret. The present
supervisor of lowest rank leads: the others send it their reports, and it sends all reports back. Each decides by itself from all
reports, and goes on only if all decisions are equal.
"""

import contextlib
import dataclasses
import hashlib
import json
import socket
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import ClusterError
from trainer.network import handshake
from trainer.supervision.restart_policy import Decision, Report

LENGTH = struct.Struct("!I")
LARGEST = 2**20
"""Largest size of a message, bytes."""
TRAINS = b"T"
"""Message of a supervisor to the others that its worker trains."""
ANSWER_S = 10.0
"""Seconds within which a connected supervisor must send its report."""
Address = tuple[str, int]
Enough = Callable[[Collection[int]], bool]
"""Function that returns whether the present ranks go on without the others."""


class ConnectionLoss(ClusterError):
    """Raised when a supervisor has left during the decision; all meet again."""


def agree(
    rank: int,
    addresses: Sequence[Address],
    secret: bytes,
    own: Report,
    decide: Callable[[Mapping[int, Report]], Decision],
    wait: float,
    enough: Enough,
    clock: Clock = CLOCK,
) -> "tuple[Decision, Start]":
    """Decide with all present supervisors; return the decision and the start.

    Args:
        rank: this supervisor's rank.
        addresses: addresses of all workers' supervisors, by rank.
        secret: this launch's secret.
        own: this supervisor's report.
        decide: a pure function of the reports.
        wait: seconds within which all must come.
        enough: returns whether the present ranks go on without the others.
        clock: source of the time.

    Raises:
        ClusterError: neither all nor enough supervisors came.
        ConnectionLoss: a supervisor came, and left before all had decided.
    """
    sockets = handshake.assemble(rank, addresses, hashlib.sha256(b"supervisors" + secret).digest(), wait, enough, clock=clock)
    try:
        decision = decide(_reports(rank, len(addresses), sockets, own, clock))
        digest = hashlib.sha256(json.dumps(dataclasses.asdict(decision)).encode()).digest()
        if other := [peer for peer, data in exchange(sockets, digest, clock).items() if data != digest]:
            raise ConnectionLoss(f"rank {other[0]} decided otherwise")
        # Only the leader has compared all decisions.
        exchange(sockets, b"", clock)
    except BaseException:
        for connection in sockets.values():
            connection.close()
        raise
    return decision, Start(sockets)


class Start:
    """Start on which supervisors have agreed: their connections stay open until their workers train.

    TensorFlow waits minutes for a worker that ends before it has joined. The leader has a connection to each supervisor, and each other
    supervisor one to the leader. A supervisor whose worker trains sends a message and leaves. One that leaves without a message has lost
    its worker, and all others end their workers, too.
    """

    def __init__(self, sockets: Mapping[int, socket.socket]):
        """Take the connections, by rank."""
        self._sockets = dict(sockets)
        for connection in sockets.values():
            connection.setblocking(False)

    @property
    def peers(self) -> Collection[int]:
        """Ranks of the connected supervisors: for the leader, all present ones."""
        return self._sockets.keys()

    def is_lost(self) -> bool:
        """Return whether a supervisor whose worker does not train yet has left or is no longer reachable."""
        for peer, connection in list(self._sockets.items()):
            try:
                word = connection.recv(len(TRAINS))
            except BlockingIOError:
                continue
            except OSError:
                word = b""
            if word != TRAINS:
                return True
            self._sockets.pop(peer).close()
        return False

    def close(self, trains: bool) -> None:
        """Leave, with a message if this worker trains."""
        for connection in self._sockets.values():
            with contextlib.suppress(OSError), connection:
                connection.sendall(TRAINS if trains else b"")
        self._sockets = {}


def _reports(rank: int, workers: int, sockets: Mapping[int, socket.socket], own: Report, clock: Clock = CLOCK) -> dict[int, Report]:
    """The reports of all present supervisors; the leader collects them and sends them to the others."""
    sent = exchange(sockets, own.to_bytes(), clock)
    if all(peer > rank for peer in sockets):
        reports = {rank: own} | {peer: Report.from_bytes(data) for peer, data in sent.items()}
        exchange(sockets, json.dumps({peer: dataclasses.asdict(report) for peer, report in sorted(reports.items())}).encode(), clock)
        return reports
    ((leader, data),) = exchange(sockets, b"", clock).items()
    try:
        table = {int(peer): Report.from_bytes(json.dumps(values).encode()) for peer, values in json.loads(data).items()}
    except (ValueError, AttributeError) as error:
        raise ConnectionLoss(f"rank {leader} sent no reports: {error}") from None
    if not table.keys() <= set(range(workers)):
        raise ConnectionLoss(f"rank {leader} sent reports of other ranks than the {workers} of the launch")
    if table.get(rank) != own:
        raise ConnectionLoss(f"rank {leader} sent another report of rank {rank}")
    return table


def exchange(sockets: Mapping[int, socket.socket], data: bytes, clock: Clock = CLOCK) -> dict[int, bytes]:
    """Send the same bytes to all peers, even if one is gone, and return each peer's bytes."""
    gone: ConnectionLoss | None = None
    for peer, connection in sockets.items():
        connection.settimeout(ANSWER_S)
        try:
            with _talking_to(peer):
                connection.sendall(LENGTH.pack(len(data)) + data)
        except ConnectionLoss as error:
            gone = gone or error
    if gone:
        raise gone
    return {peer: _receive(peer, connection, clock) for peer, connection in sockets.items()}


def _receive(peer: int, connection: socket.socket, clock: Clock) -> bytes:
    (length,) = LENGTH.unpack(_read(peer, connection, LENGTH.size, clock))
    if length > LARGEST:
        raise ConnectionLoss(f"rank {peer} announced {length:,} bytes")
    return _read(peer, connection, length, clock)


def _read(peer: int, connection: socket.socket, count: int, clock: Clock) -> bytes:
    data = b""
    while len(data) < count:
        if not clock.select([connection], ANSWER_S):
            raise ConnectionLoss(f"rank {peer}: timed out")
        with _talking_to(peer):
            part = connection.recv(count - len(data))
        if not part:
            raise ConnectionLoss(f"rank {peer} closed its connection")
        data += part
    return data


@contextlib.contextmanager
def _talking_to(peer: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConnectionLoss(f"rank {peer}: {error.strerror or error}") from None
