"""The validation of a run, divided over its workers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.common.clock import CLOCK, Clock
from trainer.data.partition import part_bounds
from trainer.engine.job import Job
from trainer.rundir.phases import Phase

if TYPE_CHECKING:
    from trainer.engine.base import Engine
    from trainer.network.cluster import Cluster

VALIDATION_BATCH = 128
"""Examples per validation batch, like `validation_batch_size` of Keras' `fit`."""
PROGRESS_S = 2.0
"""Between two records of a validation's progress."""


class Validation:
    """The held-out examples in whole batches, divided among the workers.

    No batch is cut: a masked loss is a mean over the unmasked values of its batch, so with cut batches it would depend on the number of
    workers.
    """

    def __init__(self, job: Job, engine: "Engine", cluster: "Cluster", clock: Clock = CLOCK):
        """Divide the examples; an engine that validates elsewhere has no batches."""
        self._job, self._engine, self._cluster, self._clock = job, engine, cluster, clock
        self._part, self._recorded_at = range(0), 0.0
        """Numbers of the batches that this worker evaluates."""
        held_out = np.sort(job.manifest.order[: job.counts.validation_images])
        batches = [held_out[start : start + VALIDATION_BATCH] for start in range(0, len(held_out), VALIDATION_BATCH)]
        self.batches = batches if engine.validates else []
        self._sums = np.zeros(0)
        """Sums of the metrics' states so far."""

    def sums(self, first: int, last: int, in_order: bool) -> np.ndarray:
        """Sums of the metrics' states over the batches up to `last`; batches from `first` on are new.

        At the first call, each worker evaluates a part, and one all-reduce follows; `in_order`: each worker evaluates all batches.
        """
        results, count = self._engine.validation_results, len(self.batches)
        if first == 0:
            self._job.metrics.phase(Phase.VALIDATING)
            self._part, self._recorded_at = range(count), self._clock.monotonic()
        if in_order or self._engine.validates_in_order:
            self._add(first, last + 1)
        elif first == 0:
            # The last batch may show effects that all earlier batches have left in the metrics.
            alone = int(results.follow_states)
            self._part = range(*part_bounds(count - alone, self._engine.shares, self._cluster.member.rank))
            sums = self._evaluated(self._part.start, self._part.stop, count - 1)
            self._sums = self._cluster.sum(sums.astype(np.float32))
            if alone:
                self._add(count - 1, count)
        if last == count - 1:
            self._engine.validated(self._cluster, count)
        return self._sums

    def _add(self, start: int, stop: int) -> None:
        """Add the batches from `start` to `stop`, all of them on each worker."""
        before = self._sums if start else np.zeros(self._engine.validation_results.size)
        sums = self._evaluated(start, stop, stop - 1, before)
        self._sums = self._engine.validation_results.summed(before, sums[np.newaxis])

    def _evaluated(self, start: int, stop: int, *more: Any) -> np.ndarray:
        """See `Engine.validate`; for the batches from `start` to `stop`."""
        return self._engine.validate(self._gathered(start, stop), *more)

    def _gathered(self, start: int, stop: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Numbered batches from `start` to `stop`; the progress of a long validation is recorded."""
        for number, batch in enumerate(self.batches[start:stop], start):
            if self._clock.monotonic() - self._recorded_at >= PROGRESS_S:
                self._job.metrics.phase(Phase.VALIDATING, f"{100 * (number - self._part.start) // len(self._part)}%")
                self._recorded_at = self._clock.monotonic()
            yield number, self._job.examples.gather(batch)
