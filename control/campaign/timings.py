"""`timings.csv` of a sweep: one row per measured trial, without the warm-up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from control.campaign import store
from control.common.text import count

FILE = "timings.csv"
SUCCEEDED, FAILED = "SUCCEEDED", "FAILED"
WEAK, STRONG = "weak", "strong"
"""Weak scaling: every worker keeps its batch, so the global batch grows. Strong: the global batch stays, each worker's share shrinks."""


@dataclass(frozen=True, order=True)
class Trial:
    """One measurement: a complete launch."""

    scaling: str
    checkpoint_every: int
    """Steps between saved training states; 0: only at the end of an epoch."""
    epochs: int
    workers: int
    repeat: int
    """From 1."""

    def run_name(self, sweep: str) -> str:
        """Name of the trial's run: unique in the sweep, and shown by tmux and TensorBoard."""
        every = f"-c{self.checkpoint_every}" if self.checkpoint_every else ""
        return f"{sweep}.{self.scaling[0]}{self.workers}{every}-e{self.epochs}-r{self.repeat}"

    @property
    def label(self) -> str:
        """`3 workers, repeat 2`."""
        every = f", state saved every {self.checkpoint_every} steps" if self.checkpoint_every else ""
        return f"{count(self.workers, 'worker')}{every}, repeat {self.repeat}"


@dataclass(frozen=True)
class Timing:
    """One row: a trial and its times. A failed trial has None for all seconds and rates."""

    workers: int
    repeat: int
    epochs: int
    seconds_end_to_end: float | None
    """From the launch, before files are written to the hosts and sessions start, to the end of the last worker."""
    seconds_training: float | None
    """Steps, saved states and validation of all epochs, without start-up and snapshots."""
    images_per_s: float | None
    """Training images of all workers per second of their steps, see `typical_rate`."""
    checkpoint_every: int
    scaling: str
    state: str
    hosts: str
    """Names separated by spaces, in the order of rank."""

    @property
    def trial(self) -> Trial:
        """The trial of this row."""
        return Trial(self.scaling, self.checkpoint_every, self.epochs, self.workers, self.repeat)

    @property
    def measured(self) -> bool:
        """True if the row has a time: a trial that failed twice has none."""
        return self.state == SUCCEEDED


STORE = store.Store(Timing)
read, put, any_measured = STORE.read, STORE.put, STORE.any_measured


def typical_rate(calls: Sequence[Mapping[str, Any]]) -> float | None:
    """images/s of a training's median step, from the chief's records of calls; None without a call after the first.

    Unlike the mean, it does not include the first call, what a profiled step takes longer, and bursts of other work on the machine.
    """
    sized = [(call["images_per_s"], call["images_per_s"] * call["seconds"]) for call in calls[1:]]
    largest = max((images for _, images in sized), default=0.0)
    # A profiled step is a call of its own.
    usual = sorted((rate, images) for rate, images in sized if 2 * images > largest)
    reached = list(accumulate(images for _, images in usual))
    return next((rate for (rate, _), images in zip(usual, reached, strict=True) if 2 * images >= reached[-1]), None)
