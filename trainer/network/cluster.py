"""The synchronous cluster: TF_CONFIG in, a strategy out, and the few collectives used outside a step."""

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.eager import context

from trainer.common.errors import ClusterError, PeerLost
from trainer.network import all_reduce, handshake
from trainer.network.array_group import ArrayGroup
from trainer.network.member import Member, address
from trainer.network.peer_watch import ANSWER_S, Answer
from trainer.network.sockets_all_reduce import Direct

HEARTBEAT_TIMEOUT_MS = 30_000
REGISTER_TIMEOUT_MS = 300_000
COLLECTIVE_TIMEOUT_S = 600.0
LEADER_S = 30.0
TASK = "/job:worker/replica:0/task:{}"


class Cluster(ArrayGroup):
    """A running cluster: MultiWorkerMirroredStrategy and this worker's membership."""

    def __init__(self, member: Member, threads: int, devices: Sequence[str] = (), gpus: int | None = None, direct_port: int = 0):
        """Join the cluster with `threads` intra-op threads; return when every worker has joined. Creates the strategy before any op.

        `devices` names this machine's devices for a single worker; default: all GPUs, or the CPU. ClusterError if TensorFlow does not
        find exactly `gpus`; None: any number. The other workers connect to `direct_port` (TCP); 0: any free port.
        """
        self.member, self.threads, self._direct_port = member, threads, direct_port
        gpus_taken = take_gpus(gpus)
        set_threads(threads)
        tf.config.experimental.enable_op_determinism()
        if member.workers > 1:
            _watch_peers(member.workers)
            _await_leader(member)
        implementations = tf.distribute.experimental.CommunicationImplementation
        self.options = tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=COLLECTIVE_TIMEOUT_S,
            # AUTO leaves it to TensorFlow, whose source takes its ring between GPUs, too, unless NCCL is named. NCCL refuses workers
            # that share a GPU.
            implementation=implementations.AUTO if gpus_taken else implementations.RING,
        )
        if devices:
            self.strategy: tf.distribute.Strategy = tf.distribute.MirroredStrategy(list(devices))
        else:
            self.strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=self.options)
        self.devices = self.strategy.num_replicas_in_sync // member.workers
        """Devices per worker, the same on all workers; each takes a part of the worker's images."""
        self.on_host = not gpus_taken and self.devices == 1
        self.direct: Direct | None = None
        self.group: all_reduce.Group = (
            all_reduce.Collectives(member.rank, member.workers, self.options)
            if self.strategy.num_replicas_in_sync > 1
            else all_reduce.Alone()
        )
        self._sums = {dtype.name: self._make_sum(dtype) for dtype in (tf.float32, tf.int32)}

    def check_generation(self, generation: int) -> None:
        """Refuse to train with a worker of another start of this run (PeerLost): it was late, and its supervisor has been told since."""
        others = self.gather([generation])[:, 0]
        if len(different := np.flatnonzero(others != generation)):
            rank = int(different[0])
            raise PeerLost(f"rank {rank} is of generation {others[rank]}, this worker of {generation}", rank)

    def replica(self) -> Any:
        """Number of this device among those of all workers, from 0; in a function that `run` calls."""
        return self.member.rank if self.on_host else tf.distribute.get_replica_context().replica_id_in_sync_group

    def device(self) -> Any:
        """Index of this device on its worker, from 0; in a function that `run` calls."""
        return self.replica() % self.devices

    def settle(self) -> None:
        """Wait until this worker's devices have finished; a CPU has when the function returns."""
        if not self.on_host:
            tf.test.experimental.sync_devices()

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Where models are made. On CPUs it is no strategy's, which would change what Keras does with the model."""
        return contextlib.nullcontext() if self.on_host else self.strategy.scope()

    def run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Call a function of a traced step on this worker, in replica context where devices or TensorFlow's collectives need it."""
        if self.on_host and not isinstance(self.group, all_reduce.Collectives):
            return function(*arguments)
        return self.strategy.run(function, args=tuple(arguments))

    def local(self, result: Any) -> Any:
        """Result of `run` on this worker's first device."""
        return self.strategy.experimental_local_results(result)[0]

    def connect(self, transport: str) -> None:
        """Set up the transport that `reduction.transport` names; all workers call it.

        ClusterError if a worker can't be reached directly, or has GPUs or several devices, whose tensors are not in host memory.
        """
        if transport == "direct" and not self.on_host:
            raise ClusterError(
                "reduction.transport=direct sends from a processor's memory, and a worker here has GPUs or several devices; "
                "leave it at auto, or set reduction.transport=tensorflow"
            )
        wanted = transport == "direct" or (transport == "auto" and self.on_host)
        if wanted and self.member.workers > 1:
            sockets = handshake.connect(self.member.rank, self.member.hosts, self.sum, self._direct_port)
            self.direct = Direct(self.member.rank, sockets, COLLECTIVE_TIMEOUT_S, self.member.hosts)
            self.group = all_reduce.OnHost(self.direct)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum of an array over all workers, with the same shape and type (float32 or int32)."""
        if self.member.workers == 1:
            return values
        reduced: np.ndarray = self._sums[values.dtype.name](values.ravel()).numpy()
        return reduced.reshape(values.shape)

    def _make_sum(self, dtype: tf.DType) -> Callable[[np.ndarray], tf.Tensor]:
        def in_replica(local: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            own = tf.identity(local) if self.devices == 1 else tf.where(self.device() == 0, local, tf.zeros_like(local))
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own, options=self.options)

        @tf.function(input_signature=[tf.TensorSpec([None], dtype)], autograph=False)
        def call(values: tf.Tensor) -> tf.Tensor:
            return self.local(self.strategy.run(in_replica, args=(values,)))

        return call


def set_threads(threads: int) -> None:
    """How many threads TensorFlow computes an operation with; call before its first."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))


def take_gpus(wanted: int | None = None) -> int:
    """How many GPUs this process has, ClusterError if not as `wanted`; call before TensorFlow's first operation."""
    gpus = tf.config.list_physical_devices("GPU")
    if wanted is not None and len(gpus) != wanted:
        raise ClusterError(
            f"gpus={wanted}: TensorFlow finds {len(gpus)} on this host. Its Python must have CUDA's libraries (provision.yml installs "
            "them where the inventory says gpus: N), and nvidia-smi there must list as many"
        )
    for gpu in gpus:
        # Otherwise TensorFlow takes all of a GPU's memory, even on a shared host.
        tf.config.experimental.set_memory_growth(gpu, True)
    return len(gpus)


def ask(rank: int) -> Answer:
    """Probe a worker of the running cluster for an answer."""
    try:
        context.context().check_collective_ops_peer_health(TASK.format(rank), timeout_in_ms=int(1000 * ANSWER_S))
    except tf.errors.DeadlineExceededError:
        return Answer.SILENT
    except tf.errors.OpError:
        return Answer.GONE
    return Answer.ALIVE


def _await_leader(member: Member) -> None:
    """Wait until the first worker listens, for a while: gRPC tries an address that has refused it again only after a second."""
    deadline = time.monotonic() + LEADER_S
    while not member.is_chief and time.monotonic() < deadline:
        try:
            socket.create_connection(address(member.addresses[0]), 1.0).close()
        except OSError:
            time.sleep(0.01)
        else:
            return


def _watch_peers(workers: int) -> None:
    """Let TensorFlow's coordination service notice a peer that dies or freezes."""
    context.context().configure_coordination_service(
        "standalone",
        service_leader=TASK.format(0),
        coordinated_jobs=[CoordinatedJob(name="worker", num_tasks=workers)],
        heartbeat_timeout_in_ms=HEARTBEAT_TIMEOUT_MS,
        cluster_register_timeout_in_ms=REGISTER_TIMEOUT_MS,
    )
