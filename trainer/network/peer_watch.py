"""A thread that keeps asking the other workers whether they are alive.

When a worker's host or network is gone, whatever waits for it gets no error: TCP retries for a quarter of an hour, and TensorFlow's
heartbeats take up to a minute and reach only its own collectives. A worker that ends closes its connections, which the others
notice at once.
"""

import enum
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from trainer.common.clock import CLOCK, Clock

EVERY_S = 3.0
ANSWER_S = 15.0
"""Seconds within which a worker must answer; TensorFlow's own threads and the kernel answer, however busy Python is."""
STOPPED_ANSWERING = "stopped answering: it is frozen, or its host or network is gone"
"""Message about a worker that does not answer."""
GONE = 3
"""After this many refused calls, one per round, a worker counts as lost, even if nothing else noticed."""


class Answer(enum.Enum):
    """How a worker responds."""

    ALIVE = enum.auto()
    SILENT = enum.auto()
    """No answer in time: it is frozen, or its host or network is gone."""
    GONE = enum.auto()
    """The call was refused."""


class PeerWatch(threading.Thread):
    """Watches the peers of one worker."""

    def __init__(self, peers: Sequence[int], ask: Callable[[int], Answer], lost: Callable[[int], None], clock: Clock = CLOCK):
        """Watch these ranks from `start` to `stop`; this thread calls `ask`, and once `lost` with the first rank that is lost."""
        super().__init__(daemon=True)
        self._peers, self._ask, self._lost, self._over, self._clock = peers, ask, lost, threading.Event(), clock

    def run(self) -> None:
        """Ask one peer after the other until the first is lost; if this host lost its network, no other would answer either."""
        refused: Counter[int] = Counter()
        while not self._clock.wait(self._over, EVERY_S):
            for peer in self._peers:
                answer = self._ask(peer)
                refused[peer] = refused[peer] + 1 if answer is Answer.GONE else 0
                if self._over.is_set():
                    return
                if answer is Answer.SILENT or refused[peer] >= GONE:
                    self._lost(peer)
                    return

    def stop(self) -> None:
        """Stop asking, so that finished workers may leave. Returns when the last question is answered."""
        self._over.set()
        self._clock.join(self)
