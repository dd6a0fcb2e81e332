"""How the supervisors of a run agree on what happens next, while none of its workers runs.

They meet on the workers' direct ports, which are free then, and prove to each other that they know the launch's secret. The first of
those that are there leads: the others send it their reports, and it sends all reports back. Each decides by itself from all reports, and
goes on only if all have decided the same.
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
"""Bytes of a message."""
TRAINS = b"T"
"""Message of a supervisor, whose worker trains, to the other supervisors."""
ANSWER_S = 10.0
"""Seconds within which a supervisor that has come must send its report."""
Address = tuple[str, int]
Enough = Callable[[Collection[int]], bool]
"""Returns whether the ranks that are there go on without the other ranks."""


class ConnectionLoss(ClusterError):
    """A supervisor left while all were deciding; they meet again."""


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
    """Decide with all supervisors that are there; return the decision and the start.

    Args:
        rank: this supervisor's.
        addresses: of all workers' supervisors, by rank.
        secret: of this launch.
        own: this supervisor's report.
        decide: a pure function of the reports.
        wait: seconds within which all must come.
        enough: whether the ranks that are there go on without the other ranks.
        clock: the time that passes meanwhile.

    Raises:
        ClusterError: not all came, nor enough.
        ConnectionLoss: one came, and left before all had decided.
    """
    sockets = handshake.assemble(rank, addresses, hashlib.sha256(b"supervisors" + secret).digest(), wait, enough, clock=clock)
    try:
        decision = decide(_reports(rank, len(addresses), sockets, own, clock))
        digest = hashlib.sha256(json.dumps(dataclasses.asdict(decision)).encode()).digest()
        if other := [peer for peer, data in exchange(sockets, digest, clock).items() if data != digest]:
            raise ConnectionLoss(f"rank {other[0]} decided otherwise")
        # Only the leader has compared all.
        exchange(sockets, b"", clock)
    except BaseException:
        for connection in sockets.values():
            connection.close()
        raise
    return decision, Start(sockets)


class Start:
    """A start that supervisors have agreed on: their connections stay open until their workers train.

    TensorFlow waits for minutes for a worker that ends before it has joined. The leader has a connection to each supervisor, the others
    one to it. Who trains says so and leaves; who leaves without a word has lost its worker, and all others let theirs end, too.
    """

    def __init__(self, sockets: Mapping[int, socket.socket]):
        """Take the connections, by rank."""
        self._sockets = dict(sockets)
        for connection in sockets.values():
            connection.setblocking(False)

    @property
    def peers(self) -> Collection[int]:
        """The ranks to which there is a connection: of the leader, all that are there."""
        return self._sockets.keys()

    def is_lost(self) -> bool:
        """Return whether a supervisor whose worker does not train yet has left, or can't be reached any more."""
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
        """Leave, and say whether this worker trains."""
        for connection in self._sockets.values():
            with contextlib.suppress(OSError), connection:
                connection.sendall(TRAINS if trains else b"")
        self._sockets = {}


def _reports(rank: int, workers: int, sockets: Mapping[int, socket.socket], own: Report, clock: Clock = CLOCK) -> dict[int, Report]:
    """The reports of all who are there; the leader collects them, and sends them to the others."""
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
    """Send the same bytes to all peers, also if one is gone, and return what each sent."""
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
