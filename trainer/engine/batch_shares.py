"""Division of a step's images over the workers, so that all finish at the same time.

A worker's step takes a fixed time (compression, update, a part of the forward and backward pass) plus a time per image.
Both are measured before training, unless the sizes are given.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trainer.common.errors import ConfigError
from trainer.config.schema import Train, sizes_misfit
from trainer.data.partition import part_bounds

if TYPE_CHECKING:
    from trainer.network.cluster import Cluster

CALIBRATED = "auto"
SMALLER = 2
"""Ratio of the two timed batches."""


def shares(
    train: Train,
    cluster: "Cluster",
    global_batch: int,
    before: Sequence[Sequence[int] | None],
    seconds: Callable[[int], float],
    overhead: Callable[[], float],
) -> tuple[list[int], bool]:
    """Each worker's relative share of a step, equal on all workers, and whether it was measured just now.

    The first list in `before`, measured earlier, that has this number of workers is used. `seconds` measures a forward and
    backward pass over N images on this worker, `overhead` the rest of a step, without waiting for others. Raises
    ConfigError as `given` does.
    """
    workers = cluster.member.workers
    fixed = given(train, workers)
    if fixed is not None:
        return fixed, False
    for earlier in before:
        if earlier is not None and len(earlier) == workers:
            return list(earlier), False
    return _balanced(global_batch, _measured(cluster, global_batch // workers, seconds, overhead)), True


def given(train: Train, workers: int) -> list[int] | None:
    """The configured shares, None if they must be measured; ConfigError if their number differs from the number of workers."""
    if train.batch_sizes is None or workers == 1:
        return [1] * workers
    if isinstance(train.batch_sizes, str):
        return None
    if misfit := sizes_misfit(train.batch_sizes, workers):
        raise ConfigError(misfit)
    return list(train.batch_sizes)


def _measured(cluster: "Cluster", batch: int, seconds: Callable[[int], float], overhead: Callable[[], float]) -> list[tuple[float, float]]:
    """Fixed seconds and seconds per image of every worker."""
    small = max(1, batch // SMALLER)
    microseconds = cluster.gather([round(1e6 * value) for value in (seconds(small), seconds(batch), overhead())])
    costs = []
    for first, second, more in microseconds / 1e6:
        fixed, an_image = _line(small, first, batch, second)
        costs.append((fixed + more, an_image))
    return costs


def _line(small: int, first: float, large: int, second: float) -> tuple[float, float]:
    """Fixed seconds and seconds per image, from two measurements; if noise makes either negative, all time counts per image."""
    an_image = (second - first) / (large - small) if large > small else 0.0
    fixed = second - an_image * large
    return (fixed, an_image) if an_image > 0 and fixed >= 0 else (0.0, second / large)


def _balanced(global_batch: int, costs: Sequence[tuple[float, float]]) -> list[int]:
    """Numbers of images, at least 1 each, with equal times on all workers; `costs`: each worker's fixed seconds and seconds per image."""
    speeds = np.array([1 / an_image for _, an_image in costs])
    fixed = np.array([fixed for fixed, _ in costs])
    step_seconds = (global_batch + float(fixed @ speeds)) / speeds.sum()
    wanted = np.maximum(1.0, (step_seconds - fixed) * speeds)
    wanted *= global_batch / wanted.sum()
    sizes = np.maximum(1, np.floor(wanted)).astype(int)
    # The largest remainders get the images left by rounding; the minimum of 1 may have assigned too many.
    for number in np.argsort(sizes - wanted, kind="stable"):
        if sizes.sum() < global_batch:
            sizes[number] += 1
    while sizes.sum() > global_batch:
        sizes[int(np.argmax(sizes))] -= 1
    return [int(size) for size in sizes]


def described(names: Sequence[str], global_batch: int, parts: Sequence[int], noun: str) -> str:
    """Text on the division, as `worker1 107, worker2 53 images per step`; `noun`: noun for an example."""
    bounds = [part_bounds(global_batch, parts, rank) for rank in range(len(parts))]
    sizes = [stop - start for start, stop in bounds]
    return ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True)) + f" {noun}s per step"
