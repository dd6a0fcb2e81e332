"""TensorFlow's part of a worker: joining the cluster, checking on peers, the engine that trains, TensorBoard's events.

Nothing else between a worker's command line and its files needs TensorFlow.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.network.member import Member

if TYPE_CHECKING:
    from trainer.checkpoint.states import Progress
    from trainer.engine.base import Engine
    from trainer.engine.job import Job
    from trainer.engine.measured_choices import EarlierChoice
    from trainer.network.cluster import Cluster
    from trainer.network.peer_watch import Answer
    from trainer.parameter_server.roles import Task

LIBRARIES = ("tensorflow", "keras")
"""Libraries with the slowest imports."""
MODULES = (*LIBRARIES, "trainer.worker.process", "trainer.network.cluster", "trainer.worker.loop", "trainer.worker.choose_engine")
"""Modules that a process imports before it forks the next worker."""


def join(task: "Task | None", threads: int, gpus: int, direct_port: int) -> "Cluster":
    """Join the cluster in TF_CONFIG; return once all workers are there. `task`: the chief's task in an asynchronous run."""
    if task is not None:
        from trainer.parameter_server.coordinator import Coordinator

        print(f"chief of {json.dumps(task.cluster)}, {threads} threads", flush=True)
        return Coordinator(task, threads)
    from trainer.network.cluster import Cluster

    member = Member.from_environment()
    described = f"rank {member.rank} of {member.workers}: {json.dumps(member.addresses)}, {threads} threads"
    print(f"{described}{f', GPUs: {gpus}' if gpus else ''}", flush=True)
    return Cluster(member, threads, gpus=gpus, direct_port=direct_port)


def ask(rank: int) -> "Answer":
    """Check whether a worker of the running cluster is alive."""
    from trainer.network.cluster import ask

    return ask(rank)


def engine(job: "Job", cluster: "Cluster", before: "Progress", kept: "EarlierChoice") -> "Engine":
    """Make the engine of a run's model; see `engines.make`."""
    from trainer.worker import choose_engine

    return choose_engine.make_engine(job, cluster, before, kept)


def is_error(error: Exception) -> bool:
    """Return whether TensorFlow raised the error, perhaps in place of one raised inside a step."""
    import tensorflow as tf

    return isinstance(error, tf.errors.OpError)


class EventFile:
    """TensorBoard scalars in one folder."""

    def __init__(self, folder: Path):
        import tensorflow as tf

        self._writer = tf.summary.create_file_writer(str(folder))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the scalars of a step, by tag, to the disk."""
        import tensorflow as tf
        from tensorflow.core.framework.summary_pb2 import DATA_CLASS_SCALAR, SummaryMetadata

        # The metadata that `tf.summary.scalar` would add; that function needs the package tensorboard, which nodes do not have.
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"), data_class=DATA_CLASS_SCALAR)
        with self._writer.as_default(step=step):
            for tag, value in values.items():
                tf.summary.write(tag, tf.constant(value, tf.float32), metadata=metadata)
        self._writer.flush()
