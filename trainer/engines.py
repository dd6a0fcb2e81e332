"""Which engine trains a run."""

from trainer import assembly, processors
from trainer.asynchronous.cluster import Coordinator
from trainer.asynchronous.engine import Asynchronous
from trainer.checkpoint import Progress
from trainer.cluster import Cluster
from trainer.engine import Engine, Gradients, OwnSteps
from trainer.job import Job
from trainer.kept import Kept
from trainer.program import Program


def make(job: Job, cluster: Cluster, before: Progress, kept: Kept) -> Engine:
    """The engine of a run's model on a connected cluster; `before` is the progress of an earlier launch, `kept` what was measured then."""
    if isinstance(cluster, Coordinator):
        return Asynchronous(job, cluster, before, kept)

    def warn(what: str) -> None:
        if cluster.member.is_chief:
            job.metrics.warning(f"model: {what}")

    built = assembly.build(cluster, job.config, len(job.manifest.classes), job.examples.spec, warn)
    engine = OwnSteps(job, cluster, built) if isinstance(built, Program) else Gradients(job, cluster, built, before, kept)
    if cluster.member.workers > 1 and engine.compiled:
        others = processors.differing(cluster, engine.model.optimizer if engine.adds_up else None)
        if others and engine.follow_chief() and cluster.member.is_chief:
            job.metrics.warning(processors.described(cluster.member, others))
    return engine
