"""How snapshots come from the chief to evaluators: over a connection to each, one after the other.

An evaluator listens at its address in TF_CONFIG. Both prove that they know the launch's secret (`trainer.network.handshake`). The chief
sends a header: the epoch, the size and the SHA-256 of the snapshot, and an HMAC of these. The evaluator asks for the snapshot unless it has
evaluated just that one, says now and then that it is alive, and at last whether it has evaluated it.
"""

import contextlib
import hashlib
import hmac
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from trainer.common.clock import CLOCK, Clock
from trainer.network import handshake
from trainer.network.member import address
from trainer.parameter_server.roles import CHIEF, EVALUATOR, Task
from trainer.rundir.layout import snapshot_path
from trainer.rundir.metrics_log import Metrics
from trainer.rundir.phases import Phase

FIELDS = struct.Struct("!IQ32s")
"""Epoch, bytes, SHA-256."""
HEADER = FIELDS.size + hashlib.sha256().digest_size
"""Bytes of these and of their HMAC."""
SEND, ALIVE, DONE, REFUSED = b"S", b".", b"D", b"R"
"""Answers of an evaluator about a snapshot: wanted, under way, evaluated, failed."""
CHUNK = 2**20
PAUSE_S = 1.0
"""Between two calls to an evaluator that is not there, and two looks at whether a wait is over."""
LOSSES = 3
"""Number of evaluators that may be lost with one snapshot before no other evaluator gets it."""


class Place:
    """Where the chief and the evaluators of a launch meet."""

    def __init__(self, task: Task, secret: bytes, clock: Clock = CLOCK):
        """`secret`: what only this launch knows."""
        self.clock = clock
        self.evaluators = len(task.cluster.get(EVALUATOR, ()))
        self._addresses = [address(one) for one in (*task.cluster[CHIEF], *task.cluster.get(EVALUATOR, ()))]
        self._secret = hashlib.sha256(b"snapshots" + secret).digest()

    def chief(self, index: int) -> socket.socket:
        """The connection of the chief to the evaluator of this index, once it has come."""
        return next(iter(self._meet(index + 1, [0], (), bool).values()))

    def evaluator(self, index: int, over: Callable[[], bool]) -> socket.socket | None:
        """The chief's connection to an evaluator, once it is there; None if a wait for it is over before."""
        return next(iter(self._meet(0, (), [index + 1], lambda there: bool(there) or over()).values()), None)

    def _meet(
        self, rank: int, callers: Collection[int], called: Collection[int], over: Callable[[Collection[int]], bool]
    ) -> dict[int, socket.socket]:
        sockets = handshake.connect_some(rank, self._addresses, self._secret, callers, called, over, PAUSE_S, self.clock)
        for connection in sockets.values():
            connection.setblocking(True)
        return sockets

    def header(self, epoch: int, size: int, sha256: bytes) -> bytes:
        """Header that the chief sends before a snapshot."""
        fields = FIELDS.pack(epoch, size, sha256)
        return fields + self._proof(fields)

    def read(self, header: bytes) -> tuple[int, int, bytes] | None:
        """Epoch, bytes and SHA-256 of a snapshot; None if the chief did not say that."""
        fields, proof = header[: FIELDS.size], header[FIELDS.size :]
        return FIELDS.unpack(fields) if hmac.compare_digest(proof, self._proof(fields)) else None

    def _proof(self, fields: bytes) -> bytes:
        return hmac.digest(self._secret, fields, "sha256")


class Offers:
    """The chief's snapshots, for evaluators: the newest first, each to one of them."""

    def __init__(self, place: Place, run: Path, metrics: Metrics, patience: float):
        """Begin to call the evaluators; one that says nothing for `patience` seconds is called again."""
        self._clock = place.clock
        self._place, self._run, self._metrics, self._patience = place, run, metrics, patience
        self._waiting: set[int] = set()
        self._given: set[int] = set()
        """Epochs whose snapshots nobody has yet, and those that an evaluator has."""
        self._losses = Counter[int]()
        """How many evaluators were lost with the snapshot of an epoch."""
        self._change, self._closed, self._heard_at = threading.Condition(), threading.Event(), place.clock.monotonic()
        self._threads = [threading.Thread(target=self._serve, args=[index], daemon=True) for index in range(place.evaluators)]
        for thread in self._threads:
            thread.start()

    def offer(self, epoch: int) -> None:
        """Let an epoch's snapshot be evaluated, again if it has been written again."""
        with self._change:
            self._waiting.add(epoch)
            self._change.notify()

    def wait(self, over: Callable[[], bool]) -> list[int]:
        """Wait for the evaluators as long as one of them is heard of, or until it is `over`; the epochs that are not evaluated then."""
        self._heard_at = self._clock.monotonic()
        with self._change:
            while (left := self._waiting | self._given) and not over() and self._clock.monotonic() - self._heard_at < self._patience:
                self._metrics.phase(Phase.EVALUATING, f"{len(left)} of the snapshots are not evaluated yet")
                self._clock.wait(self._change, PAUSE_S)
        self._closed.set()
        return sorted(left)

    def _serve(self, index: int) -> None:
        while not self._closed.is_set():
            connection = self._place.evaluator(index, self._closed.is_set)
            with contextlib.suppress(OSError), connection or contextlib.nullcontext():
                while connection and not self._closed.is_set():
                    self._hand_out(connection)

    def _hand_out(self, connection: socket.socket) -> None:
        """Give a snapshot to an evaluator, if there is one; OSError if it is lost, and another gets the snapshot."""
        epoch = self._take()
        if epoch is None:
            return
        answer = b""
        try:
            answer = self._give(connection, epoch)
        finally:
            self._losses[epoch] += not answer
            given_up = self._losses[epoch] >= LOSSES
            if answer == REFUSED or given_up:
                self._metrics.warning(f"epoch {epoch} is not evaluated: the evaluator could not, and its log says why (logs.yml)")
            with self._change:
                self._given.discard(epoch)
                self._waiting |= set() if answer or given_up else {epoch}
                self._change.notify_all()

    def _take(self) -> int | None:
        with self._change:
            if not self._waiting:
                self._clock.wait(self._change, PAUSE_S)
            epoch = max(self._waiting, default=None)
            if epoch is not None:
                self._waiting.discard(epoch)
                self._given.add(epoch)
        return epoch

    def _give(self, connection: socket.socket, epoch: int) -> bytes:
        """Send a snapshot; DONE or REFUSED, or OSError if the evaluator is lost. One that is not kept any more counts as done."""
        try:
            stream = snapshot_path(self._run, epoch).open("rb")
        except FileNotFoundError:
            return DONE
        with stream:
            sha256 = hashlib.file_digest(stream, "sha256").digest()
            connection.sendall(self._place.header(epoch, stream.tell(), sha256))
            answer = self._answer(connection)
            if answer == SEND:
                stream.seek(0)
                connection.sendfile(stream)
        while answer not in (DONE, REFUSED):
            answer = self._answer(connection)
        return answer

    def _answer(self, connection: socket.socket) -> bytes:
        """The next byte of an evaluator; OSError if none comes."""
        deadline = self._clock.monotonic() + self._patience
        while not self._clock.select([connection], PAUSE_S):
            if self._closed.is_set() or self._clock.monotonic() > deadline:
                raise TimeoutError
        answer = connection.recv(1)
        if not answer:
            raise ConnectionResetError
        if answer != SEND:
            # Who only asks again and again does nothing.
            self._heard_at = self._clock.monotonic()
        return answer
