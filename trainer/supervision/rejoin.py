"""How a host that was lost comes back to workers that train without it.

While a worker trains, its direct port is free. Its supervisor listens there for the hosts that are absent: its entry port. A supervisor
that waits for the others without success requests entry at the ports of all. Once connected, it waits until the generation ends. The
worker beside the entry port is requested to end with its epoch; all others end with it, and meet the newcomer.
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
"""Seconds that a supervisor waits for the others before it asks whether they train."""
PAUSE_S = 1.0
"""Between two requests."""
CLOSE_S = 0.2
"""Within which an entry port closes: the others, and who has come, wait for its supervisor."""
FINISHED, BROKEN_OFF = b"F", b"B"
"""Messages of an entry port: the run has ended well, or was cancelled; the other supervisors have decided on its end after a fault."""
ENDS = {
    FINISHED: "the others have ended the run without this host",
    BROKEN_OFF: "the others have ended the run after a fault; nothing starts again after that",
}
"""In words."""
Address = tuple[str, int]


class RunEnd(ClusterError):
    """The others have ended the run without this host."""

    def __init__(self, word: bytes):
        """Take the message of an entry port."""
        super().__init__(ENDS[word])
        self.well = word == FINISHED


class Admission(Exception):
    """An entry port has accepted the request."""


def _entry_secret(launch: bytes) -> bytes:
    """Secret that a newcomer at an entry port proves to have, from the launch's secret."""
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
        """Open it; this thread calls `asked` when the first has come."""
        super().__init__(daemon=True)
        self._place, self._absent, self._asked = (rank, addresses, _entry_secret(secret)), absent, asked
        self._closed, self._word, self._clock = threading.Event(), b"", clock
        self.newcomers: set[int] = set()
        """Ranks of the hosts that have come."""
        self.start()

    def run(self) -> None:
        """Listen; while another program holds the port, try again."""
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
        """Close it, and tell those who have come a word, such as that the run has ended."""
        self._word = word
        self._closed.set()
        self._clock.join(self)


class SupervisorCall(threading.Thread):
    """Connects to supervisors whose workers train, as long as the context lasts."""

    def __init__(self, rank: int, addresses: Sequence[Address], secret: bytes, clock: Clock = CLOCK):
        """Take who connects, and where all listen."""
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
    """Requests entry at the ports of all others."""

    def __init__(self, rank: int, addresses: Sequence[Address], secret: bytes, clock: Clock = CLOCK):
        """Take who requests it, and where all listen."""
        super().__init__(rank, addresses, secret, clock)
        self._others = [peer for peer in range(len(addresses)) if peer != rank]
        self._sockets = dict[int, socket.socket]()

    def run(self) -> None:
        """Request entry until a port accepts."""
        if not self._clock.wait(self._over, REQUEST_AFTER_S):
            self._sockets = handshake.connect_some(*self._place, (), self._others, self._look, PAUSE_S, self._clock)

    def check(self) -> None:
        """Raise Admission if a port has accepted."""
        if self._sockets:
            raise Admission

    def wait(self) -> None:
        """Wait at the ports that accepted until their generation ends; RunEnd if it was the last."""
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
