"""A worker's job and its inputs."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config.schedule import Counts
from trainer.config.schema import Config
from trainer.data.batch import Call, Examples
from trainer.data.feeder import Feeder
from trainer.data.manifest import Manifest
from trainer.data.partition import EpochPlan
from trainer.data.transform import Feeding
from trainer.rundir.metrics_log import Metrics


@dataclass
class Job:
    """One worker's part of a run."""

    config: Config
    counts: Counts
    run: Path
    manifest: Manifest
    examples: Examples
    """Examples of the split `train`, some of which are held out for validation."""
    metrics: Metrics
    stop_asked: Callable[[], bool]
    own: Path
    """This worker's part of the run directory, `workers/<host>`."""
    started: float
    """Time at which this process started the job, on the monotonic clock, seconds."""
    elapsed: float = 0.0
    """Seconds from the launch to `started`: more than 0 if a supervisor started this process again."""
    weights: Path | None = None
    """File of `train.weights` on the shared folder."""
    room_asked: Callable[[], bool] = bool
    """Returns whether this worker is to end with its epoch, so that a lost host can join."""

    @functools.cached_property
    def _chosen(self) -> np.ndarray:
        """Indices of the examples that train."""
        return self.manifest.order[self.counts.first_train :][: self.counts.train_images]

    @functools.cached_property
    def _feeding(self) -> Feeding:
        return Feeding(self.config, self.manifest.classes, self.examples.spec)

    def feeder(self, shares: Sequence[int], rank: int) -> Feeder:
        """Feeder of a worker; its part of a batch is proportional to its share."""
        return Feeder(self.examples, self._chosen, shares, rank, self._feeding)

    @functools.cached_property
    def _lengths(self) -> np.ndarray | None:
        return self._feeding.lengths(self.examples, self._chosen)

    def plan(self, epoch: int) -> EpochPlan:
        """The batches of an epoch, counted from 1."""
        sizes = self.counts.train_images, self.counts.global_batch, self.counts.steps_per_epoch
        return EpochPlan(*sizes, self.config.seed, epoch, self._lengths, self.config.data.bucket)

    def first_rows(self, most: int) -> Any:
        """First rows, at most `most`, of the training's first step over all workers."""
        plan = self.plan(1)
        shares = [most, plan.size(0) - most] if plan.size(0) > most else [1]
        _, batch = next(self.feeder(shares, 0).epoch(plan, iter([Call(0, 1)])))
        return batch.at(0).data
