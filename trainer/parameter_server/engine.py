"""The calls of an asynchronous run: handed to workers, several at a time, and collected as they end."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from trainer.common.errors import PeerLost
from trainer.data.batch import Batch, Call
from trainer.engine.base import Engine
from trainer.engine.job import Job
from trainer.models.compiled_model import CompiledModel
from trainer.parameter_server.coordinator import Coordinator
from trainer.reduction.cost_model import Choice
from trainer.step import batch_arrays, build_step
from trainer.step.step_sums import StepSums

QUEUED = 2
"""Calls in progress or waiting per worker where nothing bounds them: a worker never waits for its next one."""
POLL_S = 0.001
NOBODY = -1
"""Rank of a worker that is lost, and nobody knows which."""
RATE_S = 1.0
READERS = 16
"""Variables that are read at the same time."""
PATIENCE, SHORTEST_S = 20, 30.0
"""A call is late when it takes PATIENCE times as long as the longest before it, and at least SHORTEST_S seconds."""


class PendingCall(NamedTuple):
    """A call that a worker computes, or will."""

    number: int
    """Number of the call, from 0."""
    result: Any
    """TensorFlow's `RemoteValue`: sums of its steps, staleness, index of the worker."""
    at: float
    """When, on the monotonic clock."""


class Asynchronous(Engine):
    """A worker reads the weights, computes the gradient of its own batch, and updates the weights, while others do the same."""

    def __init__(self, job: Job, cluster: Coordinator):
        """Build the model on the servers, and what counts updates beside it."""
        why = "by each worker to the servers that keep the weights, and applied there at once"
        with cluster.placing():
            local = build_step.build_local(cluster, job.config, len(job.manifest.classes), job.examples.spec)
            choice = Choice("asynchronous", why, 4 * sum(int(np.prod(shape)) for shape in local.shapes))
            steps = build_step.assemble(local, job.config, job.config.reduction)
            super().__init__(job, steps, choice, [1] * cluster.member.workers)
        self._job = job
        self._coordinator, self._addresses, self._staleness = cluster.coordinator, cluster.computing, job.config.strategy.staleness
        self.profile_every, self.warmup = 0, 0
        for optimizer in steps.optimizers:
            _count_at_once(optimizer)
            _update_at_the_server(optimizer)
        with cluster.strategy.scope():
            self._updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")
        self._call = self._counted()
        self._under_way: list[PendingCall] = []
        self._rate: float | None = None
        self._rate_at = -math.inf
        self._handed_out, self._longest, self._late = 0, 0.0, False
        self._offers = cluster.offers(job)
        self._stale, self._calls = Counter[int](), Counter[int]()
        """Calls of this epoch by their staleness, and by the index of the worker that computed them."""

    def _counted(self) -> Callable[..., Any]:
        signature = [batch_arrays.signature(self.steps.local.spec, 1), tf.TensorSpec([None], tf.float32)]

        @tf.function(input_signature=signature, autograph=False)
        def call(batches: Batch, rates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            """The sums of the call's steps, how many steps of other workers updated the weights meanwhile, and who computed it."""
            before, steps = self._updates.read_value(), tf.cast(tf.shape(rates)[0], tf.int64)
            with tf.control_dependencies([before]):
                sums = self._train_call(batches, rates)
            with tf.control_dependencies([sums]):
                after = self._updates.assign_add(steps, read_value=True)
            index = tf.distribute.coordinator.experimental_get_current_worker_index()
            return sums, tf.identity(after) - steps - before, index

        return call

    @property
    def rate(self) -> float | None:
        """See `Engine`; a server keeps it, so it is only asked once a second."""
        if time.monotonic() - self._rate_at > RATE_S:
            self._rate, self._rate_at = super().rate, time.monotonic()
        return self._rate

    def trace(self) -> None:
        """Nothing: tracing on this host is part of the first call, while the workers begin."""

    def train(self, call: Call, batch: Batch, rates: np.ndarray, number: int) -> tuple[StepSums, None]:  # noqa: ARG002 - in a batch
        """Hand out a call as soon as the bound of staleness allows; return the sums of those that have ended meanwhile."""
        ended = list(self._until(self._may_begin))
        arguments = tf.nest.map_structure(tf.constant, (batch, rates))
        result = self._coordinator.schedule(self._call, args=arguments)
        self._under_way.append(PendingCall(self._handed_out, result, time.monotonic()))
        self._handed_out += 1
        return StepSums.none(CompiledModel(self.model).metric_size).followed_by(ended), None

    def read(self, variables: Sequence[Any]) -> list[np.ndarray]:
        """See `Engine`; several at a time, as each is a question to a server."""
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(lambda variable: variable.numpy(), variables))

    def settle(self) -> list[np.ndarray]:
        """See `Engine`; from then on all workers are level."""
        ended = list(self._until(lambda: not self._under_way))
        self._handed_out = 0
        return ended

    def validate(self, batches: Iterable[tuple[int, tuple[Any, ...]]], *_more: Any) -> np.ndarray:
        """See `Engine`; the workers share the batches."""
        waiting, sums = deque[Any](), np.zeros(CompiledModel(self.model).metric_size)
        for _, data in batches:
            # The examples may be larger than this host's memory.
            if len(waiting) >= QUEUED * len(self._addresses):
                sums += self._validated(waiting.popleft())
            waiting.append(self._coordinator.schedule(self._test_call, args=(tf.nest.map_structure(tf.constant, data),)))
        return sum(map(self._validated, waiting), sums)

    def _validated(self, result: Any) -> np.ndarray:
        hang = self._job.config.recovery.hang
        # Only in training does the supervisor know that a worker is late.
        if not result._status_available_event.wait(hang):
            raise PeerLost(f"a worker has not validated a batch for {hang:.0f} s (recovery.hang): its host or network is gone", NOBODY)
        return np.array(result.fetch())

    def record(self, epoch: int) -> None:
        """Record how stale the epoch's calls were, and how many each worker computed."""
        calls = [self._calls[index] for index in range(len(self._addresses))]
        stale = sorted(self._stale.items())
        self._job.metrics.record(
            "staleness", epoch=epoch, staleness=[one for one, _ in stale], calls=[count for _, count in stale], by_worker=calls
        )
        self._stale.clear()
        self._calls.clear()

    def offer(self, epoch: int) -> None:
        """See `Engine`."""
        if self._offers:
            self._offers.offer(epoch)

    def evaluated(self, over: Callable[[], bool]) -> list[int]:
        """See `Engine`."""
        return self._offers.wait(over) if self._offers else []

    def _may_begin(self) -> bool:
        oldest = min((one.number for one in self._under_way), default=self._handed_out)
        return may_begin(self._handed_out, oldest, len(self._under_way), len(self._addresses), self._staleness)

    def _until(self, ready: Callable[[], bool]) -> Iterator[np.ndarray]:
        """The sums of calls that end until something holds."""
        while True:
            ended = [one for one in self._under_way if one.result._status_available_event.is_set()]
            self._under_way = [one for one in self._under_way if one not in ended]
            yield from map(self._sums_of, ended)
            if ready():
                return
            self._check_late()
            time.sleep(POLL_S)

    def _sums_of(self, ended: PendingCall) -> np.ndarray:
        # Raises what the call raised, such as that a server is lost.
        sums, stale, index = ended.result.fetch()
        self._longest, self._late = max(self._longest, time.monotonic() - ended.at), False
        self._stale[int(stale)] += 1
        self._calls[int(index)] += 1
        return np.array(sums)

    def _check_late(self) -> None:
        """Warn once of a worker that does not end its call: `recovery.hang` ends all."""
        limit = max(SHORTEST_S, PATIENCE * self._longest)
        if self._late or not self._longest or not self._under_way or time.monotonic() - self._under_way[0].at < limit:
            return
        self._late = True
        busy = [address for index, address in enumerate(self._addresses) if not self._calls[index]]
        who = f"; no call of this epoch came from {', '.join(busy)}" if busy else ""
        self._job.metrics.warning(f"a worker has not ended its call for {limit:.0f} s: it is frozen, or its host or network is gone{who}")


def may_begin(number: int, oldest: int, under_way: int, workers: int, staleness: int | None) -> bool:
    """Return whether the call `number` may be handed to a worker: stale synchronous parallel, with calls as its clock.

    Ho et al. 2013 (NIPS, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"): with the bound 0, all workers
    finish a round before any begins the next; with the bound s, the fastest is at most s rounds ahead of the slowest.

    Args:
        number: of the call, from 0, counted since all workers last waited for each other.
        oldest: number of the oldest call that has not ended; `number` if all have.
        under_way: calls that have been handed out and have not ended.
        workers: how many compute.
        staleness: rounds of one call per worker that a call may be ahead; None: any.
    """
    bound = under_way < QUEUED * workers
    return bound if staleness is None else bound and number // workers - oldest // workers <= staleness


def _count_at_once(optimizer: keras.optimizers.Optimizer) -> None:
    """Let an optimizer count its steps in one operation: Keras reads, adds and writes, which loses what others count meanwhile."""
    iterations = optimizer._iterations
    iterations.assign_add = lambda value: iterations.value.assign_add(tf.cast(value, iterations.dtype))


def _update_at_the_server(optimizer: keras.optimizers.Optimizer) -> None:
    """Let an optimizer compute where the variable is: otherwise a worker would fetch all of its slots, and send them back."""
    update = optimizer.update_step

    def there(gradient: Any, variable: Any, rate: Any) -> None:
        place = variable.value if isinstance(variable, keras.Variable) else variable
        with tf.device(place.device):
            update(gradient, variable, rate)

    optimizer.update_step = there
