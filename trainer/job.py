"""What a worker is asked to do, and its inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.config import Config
from trainer.data.manifest import Manifest
from trainer.data.pipeline import Examples
from trainer.metrics import Metrics
from trainer.schedule import Counts


@dataclass
class Job:
    """One worker's part of a run."""

    config: Config
    counts: Counts
    run: Path
    manifest: Manifest
    examples: Examples
    """Those of `train`, of which some are held out for validation."""
    metrics: Metrics
    stop_asked: Callable[[], bool]
    own: Path
    """This worker's part of the run directory, `workers/<host>`."""
    started: float
    """When this process started the job, on the monotonic clock."""
    elapsed: float = 0.0
    """Seconds since the launch at that time: more than 0 if a supervisor started this process again."""
    weights: Path | None = None
    """File of `train.weights` on the shared folder."""
    room_asked: Callable[[], bool] = bool
    """Whether this worker was asked to end with its epoch, so that a host that was lost can join."""
