"""CPU time and duration of functions, by part of a step."""

import time
from collections.abc import Callable
from typing import Any


class Account:
    """Adds up what watched functions take between two calls of `take`."""

    def __init__(self) -> None:
        self._taken: dict[str, list[float]] = {}

    def watch(self, part: str, owner: Any, name: str) -> None:
        """Count the time of a module's or class's function towards a part; watched functions must not call each other."""
        setattr(owner, name, self._watched(part, getattr(owner, name)))

    def _watched(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        sums = self._taken.setdefault(part, [0.0, 0.0])

        def call(*arguments: Any, **named: Any) -> Any:
            processor, begun = time.thread_time(), time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                sums[0] += time.thread_time() - processor
                sums[1] += time.perf_counter() - begun

        return call

    def take(self) -> dict[str, list[float]]:
        """CPU seconds and seconds by part since the last call; resets the counters."""
        taken = {part: list(sums) for part, sums in self._taken.items()}
        for sums in self._taken.values():
            sums[:] = 0.0, 0.0
        return taken
