"""Training state that is equal on all workers: weights, callbacks' states, logs. If workers differ, the chief's state counts."""

import functools
import json
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.checkpoint.states import Progress
from trainer.common.errors import ClusterError
from trainer.engine.job import Job
from trainer.network.array_group import ChiefArrays, digest
from trainer.network.member import named

if TYPE_CHECKING:
    from trainer.engine.base import Engine
    from trainer.keras_step.keras_metrics import Results
    from trainer.network.cluster import Cluster
    from trainer.user_code.callbacks import Callbacks

ROUNDING = 1e-3
"""Largest difference of weights, relative to the largest weight, that may come from rounding."""


class SharedState:
    """Compares the workers of a run; all workers call the same methods in the same order."""

    def __init__(self, job: Job, cluster: "Cluster", engine: "Engine", callbacks: "Callbacks", progress: Progress):
        """Take the holders of the state on this worker; differences are noted in `progress`."""
        self._cluster, self._engine, self._callbacks, self._progress = cluster, engine, callbacks, progress
        self._warn, self._warn_once = job.metrics.warning, functools.cache(job.metrics.warning)
        self._apart: Sequence[int] = ()
        """Ranks whose weights differed from the chief's when they were last compared."""

    def any(self, mine: bool) -> bool:
        """Return whether a flag is set on any worker."""
        return bool(self._cluster.sum(np.array([mine], np.int32))[0] > 0)

    def check_weights(self, when: str) -> list[str]:
        """Digests of the workers' weights, by rank; ClusterError if they differ."""
        digests = self._cluster.digests(digest(self._engine.read(self._engine.weights)))
        if len(set(digests)) > 1:
            table = ", ".join(f"rank {rank}: {value[:12]}" for rank, value in enumerate(digests))
            raise ClusterError(f"weights differ between workers {when}: {table}")
        return digests

    def logs(self, results: "Results", sums: Sequence[float] | np.ndarray) -> dict[str, Any]:
        """Logs from sums of the metrics' states. Callbacks also find them in the metrics, and decide by them on each worker."""
        if self._callbacks.any:
            results.show(sums)
        logs = results(sums)
        if not self._engine.from_chief.on:
            return logs
        arrays = self._cluster.from_chief([np.asarray(value, np.float64) for value in logs.values()])
        return {name: array if array.ndim else float(array) for name, array in zip(logs, arrays, strict=True)}

    def follow_chief(self) -> None:
        """If processors round differently, take the chief's optimizer state: after each step, workers take only the chief's weights."""
        if self._engine.from_chief.on:
            self._assign(self._cluster.from_chief(self._engine.read(self._engine.variables)))

    def arrays(self) -> list[np.ndarray]:
        """All arrays that training changes; workers that differ take the chief's, with a warning."""
        arrays = self._engine.read(self._engine.variables)
        if self._cluster.member.workers == 1:
            return arrays
        chiefs = self._cluster.chief_arrays(arrays)
        self._progress.digests = [chiefs.digest] * self._cluster.member.workers
        if chiefs.others:
            self._assign(chiefs.arrays)
            self._progress.digests = self._cluster.digests(digest(self._engine.read(self._engine.variables)))
            self._note_difference(chiefs)
        return chiefs.arrays

    def callback_states(self) -> list[dict[str, Any]]:
        """States of the chief's callbacks: some callbacks that write files exist only there."""
        states = self._callbacks.state()
        if not self._callbacks.anywhere:
            return states
        for name, why in self._callbacks.forgotten.items() if self._cluster.member.is_chief else ():
            self._warn_once(f"callbacks: {name} is not saved in the state ({why}): after a restart it has its initial value")
        marks = self._cluster.gather([zlib.crc32(json.dumps(one).encode()) >> 1 for one in states])
        apart = np.flatnonzero((marks != marks[0]).any(axis=0)).tolist()
        if apart:
            chiefs = json.loads(self._cluster.text_from_chief(json.dumps([states[place] for place in apart])))
            states = [chiefs[apart.index(place)] if place in apart else one for place, one in enumerate(states)]
        return states

    def _assign(self, arrays: Sequence[np.ndarray]) -> None:
        for variable, array in zip(self._engine.variables, arrays, strict=True):
            variable.assign(array)

    def _note_difference(self, chiefs: ChiefArrays) -> None:
        who, step = named(self._cluster.member.hosts, chiefs.others), self._progress.step
        rounding = chiefs.most < ROUNDING
        small = "small enough to be rounding" if rounding else "as where a callback changes them on one worker only"
        why = f"at step {step:,} the weights of {who} differed from the chief's by up to {chiefs.most:.0e} of the largest, {small}"
        more = ", and take them after each step from now on" if rounding and self._engine.follow_chief() else ""
        if self._apart != chiefs.others and self._cluster.member.is_chief:
            self._warn(f"{why}; all workers go on with the chief's{more}")
        self._apart = chiefs.others
        if not any("differed from the chief's" in reason for reason in self._progress.inexact):
            self._progress.inexact = [*self._progress.inexact, why]
