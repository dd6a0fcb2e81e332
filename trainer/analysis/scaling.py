"""How a step's time grows with the workers: a model fitted to the trials of a sweep, and how sure it is. Pure functions.

Seconds of a step of n workers, for S bytes of gradients:

    weak scaling      T(n) = c       + 2 (n - 1) a + 2 (n - 1) / n S b
    strong scaling    T(n) = c / n   + 2 (n - 1) a + 2 (n - 1) / n S b

c: seconds of own work; a: seconds a message; b: seconds a byte. The rest is the cost of a ring all-reduce in
Hockney's model: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH,
IJHPCA 19(1), 2005; Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
JPDC 69, 2009.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.analysis.timings import Timing
from trainer.errors import LockstepError


class Refused(LockstepError):
    """Nothing can be concluded: the value, the rule, and the sweep command that mends it."""


@dataclass(frozen=True)
class Work:
    """What a step has to do."""

    scaling: str
    """`timings.WEAK` or `timings.STRONG`."""
    batch: int
    """Images in a step of one worker (weak), of all workers (strong)."""
    gradient_bytes: int
    """Bytes of gradients that every worker contributes to a step."""

    def images(self, workers: int) -> int:
        """Images in a step of so many workers."""
        raise NotImplementedError


@dataclass(frozen=True)
class Fit:
    """The model with its parameters; every method takes a number of workers from 1, measured or not."""

    work: Work
    compute_s: float
    """Seconds of own work in a step (c)."""
    latency_s: float
    """Seconds a message (a)."""
    s_per_byte: float
    """Seconds a byte (b)."""
    slow_from: int | None
    """The worker from which on a step's own work takes longer by `slow_s`: a slow host; None when there is none to be seen."""
    slow_s: float
    held_out: dict[int, float]
    """By number of workers: error in percent of predicting its median step from the other numbers; above 0: predicted too slow."""
    counts: tuple[int, ...]
    """The numbers of workers that were measured, ascending."""

    def step_s(self, workers: int) -> float:
        """Seconds of a step."""
        raise NotImplementedError

    def images_per_s(self, workers: int) -> float:
        """Images a second of all workers."""
        raise NotImplementedError

    def speedup(self, workers: int) -> float:
        """images/s over those of one worker."""
        raise NotImplementedError

    def efficiency(self, workers: int) -> float:
        """Speedup over the number of workers, 0 to 1."""
        raise NotImplementedError

    def gain(self, workers: int) -> float:
        """By which share the last of so many workers raises images/s; 0.06 is 6% more, below 0 it slows down. From 2 workers."""
        raise NotImplementedError

    def communication_share(self, workers: int) -> float:
        """Share of a step that is messages and bytes, 0 to 1."""
        raise NotImplementedError

    def interval(self, quantity: str, workers: int, level: float = 0.95) -> tuple[float, float]:
        """Bootstrap interval (low, high) of a method named above, as in `interval("gain", 4)`."""
        raise NotImplementedError


def step_seconds(timing: Timing, work: Work) -> float:
    """Seconds of a step of a measured trial: its images over its images/s."""
    raise NotImplementedError


def fit(timings: Sequence[Timing], work: Work, seed: int = 0, sweep: str = "") -> Fit:
    """The model fitted to every repeat of one group (same scaling, epochs, checkpoint_every); failed trials are left out.

    Args:
        timings: rows of one group.
        work: what a step of it has to do.
        seed: of the bootstrap; the same seed gives the same intervals.
        sweep: its name, for the commands in messages.

    Raises:
        Refused: nothing can be concluded from these rows.
        ValueError: rows of several groups, or of another scaling than `work`.
    """
    raise NotImplementedError
