"""Batches for the inner loop: taken from the exact partition, gathered one call ahead in a thread."""

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from trainer.data.batch import Batch, Call, Examples
from trainer.data.partition import EpochPlan, part_bounds
from trainer.data.spec import mapped
from trainer.data.transform import Feeding


def calls(
    first: int, last: int, most: int, uneven: bool, boundary: int | None = None, offset: int = 0, profile_every: int = 0, warmup: int = 0
) -> Iterator[Call]:
    """Cut the steps `first` to `last` of an epoch into calls of at most `most` steps.

    The epoch's short last step (`uneven`) is a call of its own. No call crosses a multiple of `boundary`
    counted from the run's start (`offset` steps before the epoch), or the end of the run's first `warmup`
    steps. After the warm-up, every `profile_every`th step of the run is also a call of its own, and is
    profiled.
    """
    while first < last:
        stop = min(first + most, last)
        if uneven and first < last - 1:
            stop = min(stop, last - 1)
        if boundary:
            stop = min(stop, _next_multiple(offset + first, boundary) - offset)
        warming = offset + first < warmup
        if warming:
            stop = min(stop, warmup - offset)
        taken_apart = False
        if profile_every and not warming:
            sampled = _next_multiple(offset + first, profile_every) - offset - 1
            taken_apart = first == sampled
            stop = first + 1 if taken_apart else min(stop, sampled)
        yield Call(first, stop - first, taken_apart)
        first = stop


def _next_multiple(number: int, of: int) -> int:
    """The smallest multiple above a number."""
    return (number // of + 1) * of


def in_order(pool: Executor, work: Callable[[Any], Any], items: Iterable[Any], ahead: int) -> Iterator[Any]:
    """The results for items, in order, with `ahead` more of them in progress or waiting to be taken."""
    under_way: collections.deque[Future[Any]] = collections.deque()
    for item in items:
        under_way.append(pool.submit(work, item))
        if len(under_way) > ahead:
            yield under_way.popleft().result()
    yield from (future.result() for future in under_way)


class Feeder:
    """Gathers a worker's batches, one call ahead of training."""

    def __init__(self, examples: Examples, chosen: np.ndarray, shares: Sequence[int], rank: int, feeding: Feeding | None = None):
        """Feed `chosen` (indices into `examples`) to worker `rank`, whose part of a batch is proportional to its share.

        `feeding`: how examples become what a step is fed; by default they are fed as they are.
        """
        self._examples, self._chosen, self._feeding = examples, chosen, feeding
        self._shares, self._rank = shares, rank
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feeder")

    def epoch(self, plan: EpochPlan, planned: Iterator[Call]) -> Iterator[tuple[Call, Batch]]:
        """The batches of an epoch's calls, in order."""
        return in_order(self._thread, functools.partial(self._gather, plan), planned, 1)

    def _gather(self, plan: EpochPlan, call: Call) -> tuple[Call, Batch]:
        steps = range(call.first, call.first + call.steps)
        bounds = [part_bounds(plan.size(step), self._shares, self._rank) for step in steps]
        weight = float(bounds[0][1] > bounds[0][0])
        # A worker whose share is empty gets a placeholder.
        places = np.stack([np.arange(start, stop) if weight else np.zeros(1, np.int64) for start, stop in bounds])
        batches = [self._chosen[plan.union(step)] for step in steps]
        data, sides = self._plain(batches, places) if self._feeding is None else self._fed(self._feeding, plan, steps, batches, places)
        return call, Batch(
            data,
            np.full(places.shape, weight, np.float32),
            np.stack([start + np.arange(places.shape[1], dtype=np.int32) for start, _ in bounds]),
            np.array([plan.size(step) for step in steps], np.float32),
            np.array([plan.steps_before + step for step in steps], np.int32),
            np.float32(0),
            sides,
        )

    def _plain(self, batches: Sequence[np.ndarray], places: np.ndarray) -> tuple[Any, np.ndarray]:
        data = self._examples.gather(_at(batches, places))
        return mapped(lambda array: array.reshape(*places.shape, *array.shape[1:]), data), np.zeros((len(batches), 0), np.int32)

    def _fed(
        self, feeding: Feeding, plan: EpochPlan, steps: range, batches: Sequence[np.ndarray], places: np.ndarray
    ) -> tuple[Any, np.ndarray]:
        """The data of several steps, and what each is padded to: not the longest of this worker's part, but of the whole batch."""
        sides = np.stack([feeding.longest(self._examples, batch) for batch in batches])

        def values(places: np.ndarray) -> list[Any]:
            seeds = functools.partial(_seeds, plan, steps, places)
            gathered = feeding.gather(self._examples, _at(batches, places), sides.max(axis=0), seeds)
            return [array.reshape(*places.shape, *array.shape[1:]) for array in gathered]

        own = values(places)
        if not feeding.paired:
            return feeding.spec.pack(own), sides
        others = values(np.stack([plan.partners(step)[one] for step, one in zip(steps, places, strict=True)]))
        return feeding.spec.pack([array for pair in zip(own, others, strict=True) for array in pair]), sides


def _at(batches: Sequence[np.ndarray], places: np.ndarray) -> np.ndarray:
    """The examples at these places of each global batch, one after another."""
    return np.concatenate([batch[one] for batch, one in zip(batches, places, strict=True)])


def _seeds(plan: EpochPlan, steps: range, places: np.ndarray) -> np.ndarray:
    return np.concatenate([plan.seeds(step, one) for step, one in zip(steps, places, strict=True)])
