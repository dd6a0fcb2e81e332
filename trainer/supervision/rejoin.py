"""Return of a lost host to workers that train without it.

While a worker trains, its direct port is free. There its supervisor listens for absent hosts: this is its entry port. A supervisor that
waits for the others without success requests entry at all ports. Once connected, it waits until the generation ends. The worker beside
the entry port is requested to end at the end of its epoch; all others end with it, and meet the newcomer.
"""

import contextlib
import hashlib
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Self

from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import ClusterError
from trainer.network import handshake

REQUEST_AFTER_S = 5.0
"""Seconds that a supervisor waits for the others before it requests entry."""
PAUSE_S = 1.0
"""Seconds between two requests."""
CLOSE_S = 0.2
"""Seconds within which an entry port closes, because the others and newcomers wait for its supervisor."""
FINISHED, BROKEN_OFF = b"F", b"B"
"""Messages of an entry port: the run has ended well or was cancelled; the others have decided on its end after a fault."""
ENDS = {
    FINISHED: "the others have ended the run without this host",
    BROKEN_OFF: "the others have ended the run after a fault; nothing starts again after that",
}
"""Texts for the messages."""
Address = tuple[str, int]


class RunEnd(ClusterError):
    """Raised when the others have ended the run without this host."""

    def __init__(self, word: bytes):
        """Take the entry port's message."""
        super().__init__(ENDS[word])
        self.well = word == FINISHED


class Admission(Exception):
    """Raised when an entry port has accepted the request."""


def _entry_secret(launch: bytes) -> bytes:
    """Secret, derived from the launch's, that a newcomer must prove to have at an entry port."""
    return hashlib.sha256(b"newcomers" + launch).digest()


class EntryPort(threading.Thread):
    """Listens for absent hosts that request entry; open until it is closed."""

    def __init__(
        self,
        rank: int,
        addresses: Sequence[Address],
        secret: bytes,
        absent: Collection[int],
        asked: Callable[[], None],
        clock: Clock = CLOCK,
    ):
        """Open the port; its thread calls `asked` when the first newcomer has come."""
        super().__init__(daemon=True)
        self._place, self._absent, self._asked = (rank, addresses, _entry_secret(secret)), absent, asked
        self._closed, self._word, self._clock = threading.Event(), b"", clock
        self.newcomers: set[int] = set()
        """Ranks of the newcomers."""
        self.start()

    def run(self) -> None:
        """Listen; retry while another program holds the port."""
        while not self._closed.is_set():
            try:
                sockets = handshake.connect_some(*self._place, self._absent, (), self._look, CLOSE_S, self._clock)
            except ClusterError:
                self._clock.wait(self._closed, PAUSE_S)
                continue
            for connection in sockets.values():
                with contextlib.suppress(OSError), connection:
                    connection.sendall(self._word)

    def _look(self, connected: Collection[int]) -> bool:
        first, self.newcomers = not self.newcomers, self.newcomers | set(connected)
        if first and self.newcomers:
            self._asked()
        return self._closed.is_set()

    def close(self, word: bytes = b"") -> None:
        """Close the port, and send a message to the newcomers, such as the end of the run."""
        self._word = word
        self._closed.set()
        self._clock.join(self)


class SupervisorCall(threading.Thread):
    """Context in which this supervisor tries to connect to supervisors whose workers train."""

    def __init__(self, rank: int, addresses: Sequence[Address], secret: bytes, clock: Clock = CLOCK):
        """Take the rank of the caller and all addresses."""
        super().__init__(daemon=True)
        self._place, self._clock, self._over = (rank, addresses, _entry_secret(secret)), clock, threading.Event()

    def _look(self, connected: Collection[int]) -> bool:
        return bool(connected) or self._over.is_set()

    def __enter__(self) -> Self:
        """Begin to connect."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave."""
        self._over.set()
        self._clock.join(self)


class EntryRequest(SupervisorCall):
    """Request for entry at the ports of all others."""

    def __init__(self, rank: int, addresses: Sequence[Address], secret: bytes, clock: Clock = CLOCK):
        """Take the rank of the requester and all addresses."""
        super().__init__(rank, addresses, secret, clock)
        self._others = [peer for peer in range(len(addresses)) if peer != rank]
        self._sockets = dict[int, socket.socket]()

    def run(self) -> None:
        """Request entry until a port accepts."""
        if not self._clock.wait(self._over, REQUEST_AFTER_S):
            self._sockets = handshake.connect_some(*self._place, (), self._others, self._look, PAUSE_S, self._clock)

    def check(self) -> None:
        """Raise Admission if a port has accepted the request."""
        if self._sockets:
            raise Admission

    def wait(self) -> None:
        """Wait at the accepting ports until their generation ends; raise RunEnd if it was the last one."""
        waiting = list(self._sockets.values())
        while waiting:
            for connection in self._clock.select(waiting, None):
                with contextlib.suppress(OSError):
                    if (word := connection.recv(len(FINISHED))) in ENDS:
                        raise RunEnd(word)
                waiting.remove(connection)

    def __exit__(self, *_: object) -> None:
        """Leave."""
        super().__exit__()
        for connection in self._sockets.values():
            connection.close()
