"""Design of a sweep: its measurements, their order, and the remaining time. Pure functions.

The order is a randomised block design (Fisher, The Design of Experiments, 1935): every repeat is a block that
measures each setting once, in an order drawn from the sweep's seed. A machine that gets slower by the hour
then looks like noise and not like scaling.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from control.campaign.store import Pace, check_name
from control.campaign.timings import Timing, Trial
from control.common.text import count
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


def order(wanted: Wanted, seed: int) -> list[Trial]:
    """All trials, block by block, each block shuffled by the seed: the same seed gives the same order."""
    trials: list[Trial] = []
    for repeat in range(1, wanted.repeats + 1):
        block = [Trial(wanted.scaling, every, wanted.epochs, n, repeat) for n in wanted.workers for every in wanted.checkpoint_every]
        random.Random(f"{seed}/{repeat}").shuffle(block)  # noqa: S311 - an order, no secret
        trials += block
    return trials


def run_name(sweep: str, trial: Trial) -> str:
    """Name of a trial's run: unique in the sweep, and shown by tmux and TensorBoard."""
    every = f"-c{trial.checkpoint_every}" if trial.checkpoint_every else ""
    return f"{sweep}.{trial.scaling[0]}{trial.workers}{every}-e{trial.epochs}-r{trial.repeat}"


def label(trial: Trial) -> str:
    """A trial in messages: `3 workers, repeat 2`."""
    every = f", state saved every {trial.checkpoint_every} steps" if trial.checkpoint_every else ""
    return f"{count(trial.workers, 'worker')}{every}, repeat {trial.repeat}"


def pace(rows: Sequence[Timing] = ()) -> Pace:
    """How long trials take, beginning with earlier measurements, which exclude the time around a trial."""
    by_workers = Pace(lambda trial: trial.workers)
    for row in rows:
        if row.seconds_end_to_end is not None:
            by_workers.add(row.trial, row.seconds_end_to_end)
    return by_workers


def find(names: Sequence[str], asked: str) -> str:
    """The requested sweep, among the existing ones."""
    check_name("sweep", asked, LONGEST_NAME)
    if asked not in names:
        raise ConfigError(f"sweep={asked}: no such sweep{nearest(asked, names)}; there are: {', '.join(names) or 'none'}")
    return asked
