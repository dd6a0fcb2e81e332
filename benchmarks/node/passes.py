"""Passes that are timed: their order, and their cost in seconds and processor time."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

TICKS_PER_S = 100
"""Unit of /proc/stat (USER_HZ)."""
Progress = Callable[[str], None]
"""Shows a line."""


def in_turn(numbers: Sequence[int], round_number: int) -> list[int]:
    """The numbers in ascending order, in the next round descending, so that effects of the order cancel out."""
    return sorted(numbers, reverse=round_number % 2 == 0)


class Spent:
    """Cost of a piece of work, counted from the creation."""

    def __init__(self) -> None:
        self._idle, self._worked, self._begun = _idle(), time.process_time(), time.perf_counter()

    def so_far(self) -> dict[str, float]:
        """`seconds`, `cpu_seconds` (of this process) and `idle_seconds` (of all cores of the machine together)."""
        ended, worked = time.perf_counter(), time.process_time()
        return {"seconds": ended - self._begun, "cpu_seconds": worked - self._worked, "idle_seconds": _idle() - self._idle}


def _idle() -> float:
    return idle_seconds(Path("/proc/stat").read_text(encoding="ascii"))


def idle_seconds(stat: str) -> float:
    """Idle seconds of all cores together since the machine started, from the text of /proc/stat."""
    return sum(int(ticks) for ticks in stat.split("\n", 1)[0].split()[4:6]) / TICKS_PER_S
