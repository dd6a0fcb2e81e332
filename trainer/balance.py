"""How many images each worker takes of a step, so that all are done at the same time.

A worker's step takes a time that does not depend on the batch (compression, update, a part of the forward and backward
pass), and a time an image; both are measured before training, or the sizes are given. The gradient does not depend on
them: each image counts once.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from trainer.cluster import Cluster
from trainer.config import Train, sizes_misfit
from trainer.errors import ConfigError

CALIBRATED = "auto"
SMALLER = 2
"""The second batch that is timed has this part of the images of the first."""


def shares(
    train: Train,
    cluster: Cluster,
    global_batch: int,
    before: Sequence[int] | None,
    seconds: Callable[[int], float],
    overhead: Callable[[], float],
) -> list[int]:
    """Each worker's share of a step, in proportion; the same list on all workers.

    Args:
        train: `batch_sizes` is nothing (equal shares), a list by rank, or `auto`.
        cluster: that trains.
        global_batch: images a step.
        before: the shares with which a run that is continued began, on any worker.
        seconds: measures a forward and backward pass over so many images on this worker.
        overhead: measures what else a step takes this worker, without waiting for others.

    Raises:
        ConfigError: a list of another length than there are workers.
    """
    workers = cluster.place.workers
    known = given(train, workers)
    if known is not None:
        return known
    if before is not None and len(before) == workers:
        return list(before)
    return balanced(global_batch, _measured(cluster, global_batch // workers, seconds, overhead))


def given(train: Train, workers: int) -> list[int] | None:
    """The shares that need no measuring; None where they are to be calibrated.

    Raises:
        ConfigError: a list of another length than there are workers.
    """
    if train.batch_sizes is None or workers == 1:
        return [1] * workers
    if isinstance(train.batch_sizes, str):
        return None
    if misfit := sizes_misfit(train.batch_sizes, workers):
        raise ConfigError(misfit)
    return list(train.batch_sizes)


def _measured(cluster: Cluster, batch: int, seconds: Callable[[int], float], overhead: Callable[[], float]) -> list[tuple[float, float]]:
    """Fixed seconds and seconds an image of every worker."""
    small = max(1, batch // SMALLER)
    table = np.zeros((cluster.place.workers, 3), np.int32)
    table[cluster.place.rank] = [round(1e6 * value) for value in (seconds(small), seconds(batch), overhead())]
    found = []
    for first, second, more in cluster.gather(table) / 1e6:
        fixed, an_image = line(small, first, batch, second)
        found.append((fixed + more, an_image))
    return found


def line(small: int, first: float, large: int, second: float) -> tuple[float, float]:
    """Fixed seconds and seconds an image through two measurements; what noise turned round counts as an image's alone."""
    an_image = (second - first) / (large - small) if large > small else 0.0
    fixed = second - an_image * large
    return (fixed, an_image) if an_image > 0 and fixed >= 0 else (0.0, second / large)


def balanced(global_batch: int, costs: Sequence[tuple[float, float]]) -> list[int]:
    """Whole numbers of images, with the sum `global_batch` and at least 1 each, with which all workers take as long.

    Args:
        global_batch: at least the number of workers.
        costs: fixed seconds and seconds an image of each worker.
    """
    speeds = np.array([1 / an_image for _, an_image in costs])
    fixed = np.array([fixed for fixed, _ in costs])
    whole = (global_batch + float(fixed @ speeds)) / speeds.sum()
    wanted = np.maximum(1.0, (whole - fixed) * speeds)
    wanted *= global_batch / wanted.sum()
    sizes = np.maximum(1, np.floor(wanted)).astype(int)
    # The largest remainders take what rounding left over; with the minimum of 1 too many may have been given out.
    for number in np.argsort(sizes - wanted, kind="stable"):
        if sizes.sum() < global_batch:
            sizes[number] += 1
    while sizes.sum() > global_batch:
        sizes[int(np.argmax(sizes))] -= 1
    return [int(size) for size in sizes]


def told(names: Sequence[str], global_batch: int, parts: Sequence[int]) -> str:
    """`worker1 107, worker2 53 images a step`."""
    total = sum(parts)
    sizes = [math.floor(global_batch * part / total + 0.5) for part in parts]
    return ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True)) + " images a step"
