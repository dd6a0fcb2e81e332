"""Design of a sweep: its measurements, their order, and the remaining time. Pure functions.

The order is a randomised block design (Fisher, The Design of Experiments, 1935): every repeat is a block that
measures each setting once, in an order drawn from the sweep's seed. A machine that gets slower by the hour
then looks like noise and not like scaling.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from control.campaign.store import Pace, Row, check_name
from control.campaign.timings import Trial
from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest

LONGEST_NAME = 32
WARM_UP = "warm-up"
MOST = 500


@dataclass(frozen=True)
class Wanted:
    """A user's request; the trials are all combinations."""

    workers: tuple[int, ...]
    repeats: int
    epochs: int
    checkpoint_every: tuple[int, ...]
    scaling: str

    def order(self, seed: int) -> list[Trial]:
        """All trials, block by block, each block shuffled by the seed: the same seed gives the same order."""
        trials: list[Trial] = []
        for repeat in range(1, self.repeats + 1):
            block = [Trial(self.scaling, every, self.epochs, n, repeat) for n in self.workers for every in self.checkpoint_every]
            random.Random(f"{seed}/{repeat}").shuffle(block)  # noqa: S311 - an order, no secret
            trials += block
        return trials


class Timed(Row, Protocol):
    """A row with the duration of its trial."""

    @property
    def seconds_end_to_end(self) -> float | None:
        """Seconds from the launch to the end of the last worker; None if the trial failed."""


def numbers(variable: str, text: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers from `3`, `1,3,5` or `1-5`, sorted and unique."""
    chosen: set[int] = set()
    for part in str(text).replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)) or int(first) < least:
            raise ConfigError(f"{variable}={text}: expected whole numbers from {least}, as in 3 or 1,3,5 or 1-5")
        wanted = range(int(first), int(last or first) + 1)
        chosen.update(wanted[: MOST + 1])
        if len(chosen) > MOST:
            raise ConfigError(f"{variable}={text}: these are more than {MOST} numbers; measure fewer")
    return tuple(sorted(chosen))


def pace(rows: Iterable[Timed] = (), *similar: Callable[[Any], object]) -> Pace:
    """Estimator of trial durations that starts from earlier measurements, which exclude the time around a trial; `similar` as in `Pace`."""
    known = Pace(*similar)
    for row in rows:
        if row.seconds_end_to_end is not None:
            known.add(row.trial, row.seconds_end_to_end)
    return known


def find(names: Sequence[str], asked: str) -> str:
    """The requested sweep, among the existing ones."""
    check_name("sweep", asked, LONGEST_NAME)
    if asked not in names:
        raise ConfigError(f"sweep={asked}: no such sweep{nearest(asked, names)}; there are: {', '.join(names) or 'none'}")
    return asked
