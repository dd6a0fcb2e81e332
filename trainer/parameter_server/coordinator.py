"""The cluster as its chief sees it: a run of one member, whose steps are computed by others."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.common.files import read_secret
from trainer.engine.job import Job
from trainer.network import all_reduce
from trainer.network.cluster import Cluster, set_threads
from trainer.network.member import Member
from trainer.parameter_server.roles import EVALUATOR, SERVER, WORKER, Task
from trainer.parameter_server.snapshot_offers import Offers, Place


class Coordinator(Cluster):
    """The chief of a parameter-server cluster. What other workers would tell it outside a step, nobody does: its sums are its own."""

    def __init__(self, task: Task, threads: int):
        """Connect to all workers and servers; returns when they are there. Call it before any op.

        Args:
            task: the chief's.
            threads: of operations on this host.
        """
        self._task = task
        self.member, self.threads, self.direct = Member(0, [task.address]), threads, None
        self.computing = task.cluster[WORKER]
        """`address:port` of those that compute steps."""
        set_threads(threads)
        self.strategy = tf.distribute.ParameterServerStrategy(_resolver(task))
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        self._servers = [0] * len(task.cluster[SERVER])
        """Bytes of the variables on each server."""
        self.devices, self.on_host, self.group = 1, True, all_reduce.Alone()

    def offers(self, job: Job) -> Offers | None:
        """Offers of the run's snapshots to evaluators; None without any evaluator."""
        place = Place(self._task, read_secret(job.own)) if EVALUATOR in self._task.cluster else None
        return Offers(place, job.run, job.metrics, job.config.recovery.hang) if place else None

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """The strategy's, in which variables are on the servers."""
        return self.strategy.scope()

    def connect(self, transport: str) -> None:
        """Nothing: workers send to servers, not to each other."""

    def check_generation(self, generation: int) -> None:
        """Nothing: the supervisors of all hosts start their processes together."""

    def device(self) -> Any:
        """The only one of whoever computes a step."""
        return 0

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The array itself."""
        return values

    @contextlib.contextmanager
    def placing(self) -> Iterator[None]:
        """The strategy's scope, in which each variable goes, whole, to the server that has the fewest bytes so far.

        TensorFlow's own partitioners would split a variable, which Keras 3 can't differentiate: a `ShardedVariable` has no handle.
        """

        def create(next_creator: Any, **arguments: Any) -> Any:
            # TensorFlow places by this count, modulo the servers.
            emptiest = self.strategy.extended._variable_count = int(np.argmin(self._servers))
            variable = next_creator(**arguments)
            self._servers[emptiest] += int(np.prod(variable.shape)) * int(variable.dtype.size)
            return variable

        with self.strategy.scope(), tf.variable_creator_scope(create):
            yield


def _resolver(task: Task) -> Any:
    """TensorFlow's view of the cluster: TF_CONFIG without evaluators, which it would wait for."""
    spec = tf.train.ClusterSpec(task.training)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type=task.role, task_id=task.index, rpc_layer="grpc")
