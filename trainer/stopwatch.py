"""Seconds of the parts of a step."""

import time
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """Adds up the seconds of named parts."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("forward_backward", "compression", "all_reduce", "apply"), 0.0)

    def time(self, part: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result; on a CPU a traced function returns when all of it is done."""
        begun = time.perf_counter()
        result = function(*arguments)
        self.seconds[part] += time.perf_counter() - begun
        return result

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count seconds that were timed with one part to another."""
        self.seconds[source] -= seconds
        self.seconds[target] += seconds
