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
            job.metrics.warning(what)

    built = assembly.build(cluster, job.config, len(job.manifest.classes), job.examples.spec, lambda what: warn(f"model: {what}"))
    if isinstance(built, Program):
        engine: Engine = OwnSteps(job, cluster, built)
        compiled, adds_up = True, built.adds_up
    else:
        engine = Gradients(job, cluster, built, before, kept)
        compiled, adds_up = not built.l2_in_update, True
    if compiled and cluster.member.workers > 1:
        processors.follow(cluster, engine.follow_chief, warn, engine.model.optimizer if adds_up else None)
    return engine
