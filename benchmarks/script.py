"""What the scripts of this folder share: command line, alternating rounds."""

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
K = TypeVar("K")


def parser(description: str | None, **numbers: int) -> argparse.ArgumentParser:
    """A command line with whole numbers, by name and default."""
    line = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        line.add_argument(f"--{name}", type=int, default=default)
    return line


def in_turn(ways: Mapping[K, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter) -> dict[K, list[float]]:
    """Seconds of each way in rounds in which all take turns, so that all see the same machine; a first round is left out."""
    seconds: dict[K, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, work in ways.items():
            begun = clock()
            work()
            seconds[name].append(clock() - begun)
    return {name: taken[1:] for name, taken in seconds.items()}
