"""Workers of a cluster as threads: their sums are real, there is no TensorFlow."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from trainer.network.array_group import ArrayGroup
from trainer.network.member import Member

TOGETHER_S = 120.0
"""How long the others wait for a worker that does not come, so that the test fails; a busy disk may take half a minute."""


class Worker(ArrayGroup):
    """One of several."""

    def __init__(self, rank: int, given: list[Any], barrier: threading.Barrier, hosts: Sequence[str]):
        self.member, self._given, self._barrier = Member(rank, [f"{host}:1" for host in hosts]), given, barrier
        self.sums = 0
        """How many sums it has taken part in."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """As the cluster's; the test fails when a worker does not take part."""
        self.sums += 1
        self._given[self.member.rank] = values
        self._barrier.wait(TOGETHER_S)
        total = sum(self._given[1:], self._given[0].copy())
        self._barrier.wait(TOGETHER_S)
        return total


def workers(count: int, hosts: Sequence[str] = "abcdefgh") -> list[Worker]:
    """Workers on hosts of these names."""
    given, barrier = [None] * count, threading.Barrier(count)
    return [Worker(rank, given, barrier, hosts[:count]) for rank in range(count)]


def together(work: Callable[..., Any], *each: Sequence[Any]) -> list[Any]:
    """The results of calling a function for every worker at once; an error is the one that kept the others waiting."""
    with ThreadPoolExecutor(len(each[0])) as pool:
        futures = [pool.submit(work, *given) for given in zip(*each, strict=True)]
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    return [future.result() for future in futures]
