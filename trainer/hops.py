"""Whether sums of a middling size travel in one hop or in two: found while training, by the time of steps that do one and the other.

One hop sends more, and waits once less. What a wait costs depends on how busy hosts are, so nothing but whole steps
tells; and as the sums are the same, bit for bit, training itself can try both and loses no step.
"""

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from trainer import direct

FEWEST, MOST = 8, 64
"""Pairs of calls, one in each way, before the first look at what was found and before the last; in between, looks at every doubling."""
SURE = 2.5
"""A difference is believed from so many standard errors on."""


class Hops:
    """A `step.make_train_call` that tries both ways by turns until it is plain which is faster, and keeps to that."""

    def __init__(self, train_call: Callable[..., Any], connections: direct.Direct | None, say: Callable[[str], None]):
        """Try over these connections.

        Args:
            train_call: of `step.make_train_call`; all workers make the same calls of it.
            connections: None where sums don't travel over them.
            say: is told what was found.
        """
        self._train_call, self._connections, self._say = train_call, connections, say
        # One, two, two, one, and again: so a host that grows slower is no reproach to either.
        self._turns = itertools.cycle([direct.MIDDLING, direct.ONE_HOP, direct.ONE_HOP, direct.MIDDLING])
        self._seconds: list[float] = []
        self._look, self._begun = FEWEST, False
        self.settled = connections is None
        """Whether nothing is tried any more."""

    def __call__(self, batches: Any, rates: np.ndarray) -> Any:
        """Train; arguments and result of `train_call`."""
        if self._connections is None or self.settled:
            return self._train_call(batches, rates)
        return self._try(self._connections, batches, rates)

    def _try(self, connections: direct.Direct, batches: Any, rates: np.ndarray) -> Any:
        if not self._begun:
            return self._begin(connections, batches, rates)
        connections.one_hop_up_to(next(self._turns))
        begun = time.perf_counter()
        rows = self._train_call(batches, rates)
        rows.numpy()
        self._seconds.append((time.perf_counter() - begun) / len(rates))
        if len(self._seconds) == 2 * self._look:
            self._consider(connections)
        return rows

    def _begin(self, connections: direct.Direct, batches: Any, rates: np.ndarray) -> Any:
        """The first call traces, and shows what is summed; sums of before, which measured the network, don't count."""
        self._begun = True
        connections.one_hop_up_to(direct.ONE_HOP)
        rows = self._train_call(batches, rates)
        rows.numpy()
        self.settled = not connections.has_middling
        return rows

    def _consider(self, connections: direct.Direct) -> None:
        one, two = _by_turns(self._seconds)
        gained = two - one
        mine = np.array([one.mean(), two.mean(), gained.std(ddof=1) / math.sqrt(len(gained))], np.float32)
        # All workers have to find the same.
        mean_one, mean_two, error = (connections.all_reduce([mine])[0] / connections.workers).tolist()
        self.settled = self._look >= MOST or abs(mean_two - mean_one) > SURE * error
        self._look *= 2
        if self.settled:
            faster = mean_one < mean_two
            connections.one_hop_up_to(direct.MIDDLING if faster else direct.ONE_HOP)
            self._say(_told(faster, mean_one, mean_two, len(self._seconds)))


def _by_turns(seconds: list[float]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(seconds).reshape(-1, 2)
    pairs[1::2] = pairs[1::2, ::-1]
    return pairs[:, 0], pairs[:, 1]


def _told(faster: bool, one: float, two: float, calls: int) -> str:
    way = "one hop" if faster else "two hops"
    return f"Sums of a middling size travel in {way}: {one * 1000:.1f} ms a step in one, {two * 1000:.1f} in two, over {calls} calls."
