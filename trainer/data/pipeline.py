"""Batches for the inner loop: taken from the exact partition, gathered one call ahead in a thread."""

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from trainer.data.partition import EpochPlan
from trainer.data.spec import Spec, mapped


@dataclass(frozen=True)
class Call:
    """One call's steps, counted from the start of its epoch."""

    first: int
    steps: int
    taken_apart: bool = False
    """Whether this is a single profiled step: its parts are timed separately."""


class Batch(NamedTuple):
    """One worker's part of a step; for several steps each field but `stop` has an extra leading dimension."""

    data: Any
    """What Keras' `train_step` takes: `(x, y)` or `(x, y, sample_weight)`, each a nest of arrays `[batch, ...]`."""
    weights: Any
    """`[batch]` float32; 0 leaves an example out, such as the placeholder of a worker whose share is empty."""
    places: Any
    """`[batch]` int32: position of each example in the global batch."""
    total: Any
    """float32: size of the global batch."""
    number: Any
    """int32: number of the step in the run, from 0."""
    stop: Any
    """float32: 1 where this worker asks all to stop."""

    def at(self, index: Any) -> "Batch":
        """One step of several."""
        fields = {name: mapped(lambda array: array[index], getattr(self, name)) for name in self._fields[:-1]}
        return self._replace(**fields)


class Examples(Protocol):
    """Random access to the examples of one split."""

    spec: Spec

    def __len__(self) -> int:
        """The number of examples."""

    def gather(self, indices: np.ndarray) -> Any:
        """What Keras' `fit` takes: a tuple of nests of arrays `[len(indices), ...]`."""


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

    def __init__(self, examples: Examples, chosen: np.ndarray, shares: Sequence[int], rank: int):
        """Feed `chosen` (indices into `examples`) to worker `rank`, whose part of a batch is proportional to its share."""
        self._examples, self._chosen = examples, chosen
        self._shares, self._rank = shares, rank
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feeder")

    def epoch(self, plan: EpochPlan, planned: Iterator[Call]) -> Iterator[tuple[Call, Batch]]:
        """The batches of an epoch's calls, in order."""
        return in_order(self._thread, functools.partial(self._gather, plan), planned, 1)

    def _gather(self, plan: EpochPlan, call: Call) -> tuple[Call, Batch]:
        steps = range(call.first, call.first + call.steps)
        parts = [plan.part(step, self._shares, self._rank) for step in steps]
        weight = 1.0 if len(parts[0]) else 0.0
        positions = np.stack(parts) if len(parts[0]) else np.zeros((call.steps, 1), np.int64)
        indices = self._chosen[positions]
        return call, Batch(
            mapped(lambda array: array.reshape(*indices.shape, *array.shape[1:]), self._examples.gather(indices.ravel())),
            np.full(indices.shape, weight, np.float32),
            np.stack([plan.first(step, self._shares, self._rank) + np.arange(indices.shape[1], dtype=np.int32) for step in steps]),
            np.array([plan.size(step) for step in steps], np.float32),
            np.array([plan.steps_before + step for step in steps], np.int32),
            np.float32(0),
        )
