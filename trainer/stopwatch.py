"""Seconds of the parts of a step."""

import time
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """Adds up the seconds of named parts."""

    def __init__(self, settle: Callable[[], None] = lambda: None) -> None:
        """Start at zero; `settle` waits until all pending work is done, for functions that return earlier."""
        self._settle = settle
        self.seconds = dict.fromkeys(("forward_backward", "compression", "all_reduce", "apply"), 0.0)

    def time(self, part: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result, once its work is done."""
        begun = time.perf_counter()
        result = function(*arguments)
        self._settle()
        self.seconds[part] += time.perf_counter() - begun
        return result

    def move(self, source: str, target: str, seconds: float) -> None:
        """Move seconds from one part to another."""
        self.seconds[source] -= seconds
        self.seconds[target] += seconds
