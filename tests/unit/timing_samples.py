"""Trials of sweeps with known answers."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from control.campaign.timings import FAILED, STRONG, SUCCEEDED, WEAK, Timing
from control.sweep.scaling.fitting import Work

BYTES = 14_754_856
IMAGES = 40_000
START_UP_S = 10.0
AT_100_MBIT = 8e-8
"""Seconds per byte."""
WEAK_WORK = Work(WEAK, 64, BYTES)
STRONG_WORK = Work(STRONG, 320, BYTES)


def step(c: float, a: float = 0.0, b: float = 0.0, slow: int | None = None, d: float = 0.0) -> Callable[[int], float]:
    """Seconds of a weak step of n workers; from `slow` workers on, `d` more."""
    return lambda n: c + (d if slow and n >= slow else 0.0) + 2 * (n - 1) * a + 2 * (n - 1) / n * BYTES * b


def strong_step(c: float, a: float = 0.0, b: float = 0.0) -> Callable[[int], float]:
    """Seconds of a strong step of n workers."""
    return lambda n: c / n + 2 * (n - 1) * a + 2 * (n - 1) / n * BYTES * b


def own_work(c: float, counts: Sequence[int] = (1, 2, 3, 4, 5), slow: int | None = None, d: float = 0.0) -> dict[int, float]:
    """Seconds of a weak step's own work; from `slow` workers on, `d` more."""
    return {n: c + (d if slow and n >= slow else 0.0) for n in counts}


def trials(
    seconds: Callable[[int], float],
    noise: float = 0.0,
    seed: int = 0,
    repeats: int = 3,
    counts: Sequence[int] = (1, 2, 3, 4, 5),
    work: Work = WEAK_WORK,
) -> list[Timing]:
    """Rows of 3 epochs of 40,000 images; `noise` is the standard deviation of the logarithm of a step's seconds."""
    generator = np.random.default_rng(seed)
    return [
        timing(n, repeat, work.images(n) / (seconds(n) * float(np.exp(noise * generator.standard_normal()))), scaling=work.scaling)
        for n in counts
        for repeat in range(1, repeats + 1)
    ]


def timing(workers: int, repeat: int, images_per_s: float, scaling: str = WEAK, checkpoint_every: int = 0) -> Timing:
    """A measured row; it trains for 3 epochs and starts up for 10 s."""
    training = 3 * IMAGES / images_per_s
    hosts = " ".join(f"node{number}" for number in range(1, workers + 1))
    return Timing(workers, repeat, 3, training + START_UP_S, training, images_per_s, checkpoint_every, scaling, SUCCEEDED, hosts)


def lost(row: Timing) -> Timing:
    """The same trial, failed."""
    return dataclasses.replace(row, state=FAILED, seconds_end_to_end=None, seconds_training=None, images_per_s=None)


def noise_only(seed: int) -> list[Timing]:
    """images/s that have nothing to do with the workers."""
    generator = np.random.default_rng(seed)
    return [timing(n, repeat, generator.uniform(500, 1500)) for n in range(1, 6) for repeat in range(1, 4)]
