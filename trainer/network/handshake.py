"""How each pair of workers gets a TCP connection of its own, even while strangers connect.

Each worker listens on its own address and calls those of lower rank. The listener sends a nonce at once. The caller answers with its
rank, its own nonce and an HMAC of both under the listener's secret, and the listener answers with another HMAC. So each has proved to
the other that it knows the secret, which was shared through the existing cluster, and an eavesdropper can't replay it to open another
connection. All callers are served concurrently, and one deadline covers everything.
"""

import asyncio
import contextlib
import hmac
import math
import os
import secrets
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING

from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import ClusterError
from trainer.network.member import family
from trainer.network.peer_watch import ANSWER_S

if TYPE_CHECKING:
    import numpy as np

SECRET = 32
"""Bytes of a secret, of a nonce and of an HMAC (SHA-256)."""
CALL = struct.Struct(f"!i{SECRET}s{SECRET}s")
"""Rank of the caller, its nonce, its HMAC."""
DEADLINE_S = 60.0
STRANGER_S = 10.0
"""Seconds within which a caller must prove itself."""
PENDING = 128
"""Most unproved callers at once; beyond that, one from the address with the most callers is dropped."""
BACKLOG = 1024
"""Callers that the kernel queues until they are accepted."""
AGAIN_S = 0.1
IDLE_S, ASK_S = 3, 1
"""Seconds after which the kernel asks the other side of a quiet connection for an answer, and between two such questions: so often that
an outage of a few seconds ends nothing. Whole numbers."""

Sockets = dict[int, socket.socket]


def connect(rank: int, hosts: Sequence[str], share: "Callable[[np.ndarray], np.ndarray]", port: int = 0, clock: Clock = CLOCK) -> Sockets:
    """Connect every worker with every other; return a non-blocking socket for each peer, by rank.

    `hosts` are the addresses of all workers, without ports; `share` sums an int32 array over all workers. Port 0: any free port.
    ClusterError if the port is taken, or a worker can't be reached or did not call in time.
    """
    # A supervisor does without NumPy.
    import numpy as np

    secret = secrets.token_bytes(SECRET)
    with _listen(rank, hosts[rank], port) as server:
        table = np.zeros((len(hosts), 1 + SECRET // 4), np.int32)
        table[rank] = [server.getsockname()[1], *np.frombuffer(secret, np.int32)]
        table = share(table)
        listening = [(host, int(row[0]), row[1:].tobytes()) for host, row in zip(hosts, table, strict=True)]
        return _prompt(clock.run(_meet(rank, server, listening)))


def meet(rank: int, addresses: Sequence[tuple[str, int]], secret: bytes, deadline: float, clock: Clock = CLOCK) -> Sockets:
    """As `connect`, where all workers know the address, the port and a secret already, but start at different times.

    Args:
        rank: this worker's.
        addresses: host and port of all workers, by rank.
        secret: what only the workers know.
        deadline: seconds within which all workers must be there.
        clock: the time that passes meanwhile.

    Raises:
        ClusterError: as `connect`.
    """
    with _listen(rank, *addresses[rank]) as server:
        listening = [(host, port, secret) for host, port in addresses]
        return _guarded(_prompt(clock.run(_meet(rank, server, listening, deadline, patient=AGAIN_S))))


def assemble(
    rank: int,
    addresses: Sequence[tuple[str, int]],
    secret: bytes,
    deadline: float,
    enough: Callable[[Collection[int]], bool],
    pause: float = AGAIN_S,
    clock: Clock = CLOCK,
) -> Sockets:
    """As `meet`, but some workers may be missing: the lowest rank that is there leads, and decides when to go on.

    Args:
        rank: this worker's.
        addresses: host and port of all workers, by rank.
        secret: what only the workers know.
        deadline: seconds within which the leader must go on.
        enough: called often with the ranks that are there: whether they go on without the others.
        pause: seconds between two such calls, and between two calls of a worker that does not answer.
        clock: the time that passes meanwhile.

    Returns:
        Of the leader the sockets of all who are there, of another the one to the leader, who has begun to send.

    Raises:
        ClusterError: as `connect`.
    """

    async def gone_on(connected: Sockets) -> None:
        while True:
            _guarded(_prompt(connected))
            for peer in [peer for peer in connected if peer > rank and _has_news(connected[peer])]:
                # Only a leader speaks before it is spoken to: this one has left, and may call again.
                connected.pop(peer).close()
            there = {rank, *connected}
            # Also the leader asks when it is complete: `enough` may raise.
            may = enough(there)
            if min(there) == rank:
                if may or len(there) == len(addresses):
                    return
            elif _has_news(connected[min(there)]):
                return
            await asyncio.sleep(pause)

    with _listen(rank, *addresses[rank]) as server:
        listening = [(host, port, secret) for host, port in addresses]
        connected = clock.run(_meet(rank, server, listening, deadline, patient=pause, over=gone_on))
    leader = min([rank, *connected])
    for peer in [] if leader == rank else [peer for peer in connected if peer != leader]:
        connected.pop(peer).close()
    return connected


def connect_some(
    rank: int,
    addresses: Sequence[tuple[str, int]],
    secret: bytes,
    callers: Collection[int],
    called: Collection[int],
    over: Callable[[Collection[int]], bool],
    pause: float,
    clock: Clock = CLOCK,
) -> Sockets:
    """Listen for some workers, call others; return the sockets of those who are there once `over`, given their ranks, says so.

    Every `pause` seconds it is asked, and who does not answer is called again. ClusterError if the port for callers is taken.
    """

    async def until(connected: Sockets) -> None:
        while not over(list(connected)):
            await asyncio.sleep(pause)

    with _listen(rank, *addresses[rank]) if callers else contextlib.nullcontext() as server:
        listening = [(host, port, secret) for host, port in addresses]
        ranks = callers, called
        return _guarded(_prompt(clock.run(_meet(rank, server, listening, math.inf, patient=pause, over=until, ranks=ranks))))


def _has_news(connection: socket.socket) -> bool:
    """Return whether a non-blocking connection can be read, or has ended."""
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _prompt(sockets: Sockets) -> Sockets:
    """Connections that send small messages at once."""
    for connection in sockets.values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sockets


def _guarded(sockets: Sockets) -> Sockets:
    """Connections that end (ETIMEDOUT) when the other side's kernel does not answer for `ANSWER_S`: no `peerwatch` looks after them."""
    options = {
        socket.TCP_KEEPIDLE: IDLE_S,
        socket.TCP_KEEPINTVL: ASK_S,
        # Limits questions (instead of TCP_KEEPCNT), data without an acknowledgement, and data that the other side has no room for.
        socket.TCP_USER_TIMEOUT: round(1000 * ANSWER_S),
    }
    for connection in sockets.values():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in options.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return sockets


Listening = tuple[str, int, bytes]
"""Where a worker listens, and its secret."""


def _listen(rank: int, host: str, port: int) -> socket.socket:
    try:
        # It sets SO_REUSEADDR, so connections of an earlier launch that are still closing do not block the port.
        server = socket.create_server((host, port), family=family(host), backlog=BACKLOG)
    except OSError as error:
        raise ClusterError(
            f"rank {rank} can't listen on {host} port {port} for the other workers ({os.strerror(error.errno) if error.errno else error}); "
            "end the program that holds it, or set worker_direct_port in the inventory"
        ) from None
    server.setblocking(False)
    return server


async def _meet(
    rank: int,
    server: socket.socket | None,
    listening: Sequence[Listening],
    deadline: float | None = None,
    patient: float = 0.0,
    over: Callable[[Sockets], Awaitable[None]] | None = None,
    ranks: tuple[Collection[int], Collection[int]] | None = None,
) -> Sockets:
    """Call the workers of lower rank and listen for those of higher rank, all at once, or the two groups of other `ranks`.

    `patient`: seconds between two calls of a worker that does not listen yet; 0: one call. `over` returns when those connected so far are
    enough; without it, all must be.
    """
    called, callers = ranks[::-1] if ranks else (range(rank), range(rank + 1, len(listening)))
    connected: Sockets = {}
    deadline = DEADLINE_S if deadline is None else deadline
    listener = _Listener(rank, server, listening[rank][2], callers, connected)
    calls = [asyncio.ensure_future(_call(rank, peer, listening[peer], connected, patient)) for peer in called]
    try:
        async with asyncio.timeout(deadline):
            await (over(connected) if over else asyncio.gather(listener.complete.wait(), *calls))
    except BaseException as error:
        for connection in connected.values():
            connection.close()
        if isinstance(error, TimeoutError):
            reached = {rank, *connected}
            missing = [f"rank {peer} ({host} port {port})" for peer, (host, port, _) in enumerate(listening) if peer not in reached]
            those = ", ".join(missing) or "all others that rank 0 waits for"
            raise ClusterError(f"rank {rank}: no connection within {deadline:.0f} s with {those}; {_fix()}") from None
        raise
    finally:
        listener.close()  # pending tasks are cancelled with the loop
    return dict(connected)


def _fix() -> str:
    return (
        "workers connect to each other on the TCP ports worker_direct_port. Fix: let the firewall pass these between the cluster's "
        "addresses (doctor.yml tries them), or send through TensorFlow's port alone with -e set=reduction.transport=tensorflow"
    )


async def _call(rank: int, peer: int, listening: Listening, connected: Sockets, patient: float = 0.0) -> None:
    """Connect to a listener that proves to be `peer`; if it closes the connection before that, or if `patient` refuses it, try again."""
    host, port, secret = listening
    while peer not in connected:
        connection = socket.socket(family(host))
        connection.setblocking(False)
        try:
            try:
                await _reach(connection, rank, peer, (host, port))
            except ClusterError:
                if not patient:
                    raise
                await asyncio.sleep(patient)
                continue
            with contextlib.suppress(OSError):
                if await _prove(connection, secret, rank, peer):
                    connected[peer] = connection
                    return
        finally:
            if connected.get(peer) is not connection:
                connection.close()
        await asyncio.sleep(patient or AGAIN_S)


async def _reach(connection: socket.socket, rank: int, peer: int, address: tuple[str, int]) -> None:
    try:
        await asyncio.get_running_loop().sock_connect(connection, address)
    except OSError as error:
        where = f"{address[0]} port {address[1]}"
        raise ClusterError(f"rank {rank} can't reach rank {peer} at {where} ({error.strerror or error}); {_fix()}") from None


async def _prove(connection: socket.socket, secret: bytes, rank: int, peer: int) -> bool:
    """Prove this caller's identity to a listener; return whether the listener proves its own."""
    loop = asyncio.get_running_loop()
    theirs, own = await _read(connection, SECRET), secrets.token_bytes(SECRET)
    await loop.sock_sendall(connection, CALL.pack(rank, own, _hmac(secret, b"call", theirs, own, rank, peer)))
    return hmac.compare_digest(await _read(connection, SECRET), _hmac(secret, b"answer", theirs, own, rank, peer))


def _hmac(secret: bytes, side: bytes, theirs: bytes, own: bytes, caller: int, listener: int) -> bytes:
    return hmac.digest(secret, side + theirs + own + struct.pack("!ii", caller, listener), "sha256")


async def _read(connection: socket.socket, count: int) -> bytes:
    """Read exactly `count` bytes; ConnectionError if the other side closed the connection first."""
    data = b""
    while len(data) < count:
        part = await asyncio.get_running_loop().sock_recv(connection, count - len(data))
        if not part:
            raise ConnectionResetError("closed by the other side")
        data += part
    return data


class _Listener:
    """Serves all callers concurrently until each expected one has proved itself."""

    def __init__(self, rank: int, server: socket.socket | None, secret: bytes, expected: Collection[int], connected: Sockets):
        self._rank, self._server, self._secret = rank, server, secret
        self._expected, self._connected = set(expected), connected
        self._pending: dict[asyncio.Task[None], str] = {}
        self.complete = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if server and expected:
            # One caller per turn of the loop, so that a flood does not block calls, proofs and the deadline.
            self._loop.add_reader(server, self._accept, server)
        else:
            self.complete.set()

    def _accept(self, server: socket.socket) -> None:
        try:
            connection, address = server.accept()
        except OSError:
            return  # the caller is already gone
        connection.setblocking(False)
        if len(self._pending) >= PENDING:
            self._drop_one()
        task = self._loop.create_task(self._hear(connection))
        self._pending[task] = str(address[0])
        task.add_done_callback(lambda ended: self._end(ended, connection))

    def _drop_one(self) -> None:
        """Drop the oldest caller from the address with the most, so that one host's flood does not crowd out the others."""
        crowd = Counter(self._pending.values()).most_common(1)[0][0]
        oldest = next(task for task, address in self._pending.items() if address == crowd)
        del self._pending[oldest]
        oldest.cancel()

    async def _hear(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a caller that left, or took too long
            async with asyncio.timeout(STRANGER_S):
                peer = await self._examine(connection)
            if peer in self._expected:
                if peer in self._connected:  # it missed the answer, and calls again
                    self._connected[peer].close()
                self._connected[peer] = connection

    async def _examine(self, connection: socket.socket) -> int:
        """Rank of a caller, or -1 for one that does not know this worker's secret."""
        own = secrets.token_bytes(SECRET)
        await self._loop.sock_sendall(connection, own)
        rank, theirs, proof = CALL.unpack(await _read(connection, CALL.size))
        if not hmac.compare_digest(proof, _hmac(self._secret, b"call", own, theirs, rank, self._rank)):
            return -1
        await self._loop.sock_sendall(connection, _hmac(self._secret, b"answer", own, theirs, rank, self._rank))
        return int(rank)

    def _end(self, task: "asyncio.Task[None]", connection: socket.socket) -> None:
        """Clean up after a caller; this also runs for a task that was cancelled before it began."""
        self._pending.pop(task, None)
        if connection not in self._connected.values():
            connection.close()
        if self._expected <= self._connected.keys():
            self.complete.set()

    def close(self) -> None:
        """Stop listening."""
        if self._server:
            self._loop.remove_reader(self._server)
