"""Construction of a run's engine, with its reduction and the division of a step over the workers."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.checkpoint.states import Progress
from trainer.common.errors import ConfigError
from trainer.config.schema import Reduction
from trainer.data.columns import Columns
from trainer.data.spec import noun
from trainer.engine import auto_reduction, batch_shares
from trainer.engine.base import Engine
from trainer.engine.job import Job
from trainer.engine.measured_choices import EarlierChoice
from trainer.keras_step import keras_metrics, mixed_processors, rehearsal
from trainer.models.compiled_model import CompiledModel
from trainer.network.cluster import Cluster
from trainer.parameter_server.coordinator import Coordinator
from trainer.parameter_server.engine import Asynchronous
from trainer.reduction.cost_model import Choice
from trainer.rundir.phases import Phase
from trainer.step import batch_arrays, build_step, worker_step
from trainer.step.program import Program
from trainer.user_code.undo import is_users, undone


def make_engine(job: Job, cluster: Cluster, before: Progress, kept: EarlierChoice) -> Engine:
    """Make the engine of a run's model on a connected cluster; `before` is an earlier launch's progress, `kept` its measurements.

    All workers make it at once.
    """
    if isinstance(cluster, Coordinator):
        return Asynchronous(job, cluster)

    def warn(what: str) -> None:
        if cluster.member.is_chief:
            job.metrics.warning(what)

    first = functools.cache(lambda: job.first_rows(rehearsal.MOST))
    given = cluster, job.config, len(job.manifest.classes), job.examples.spec
    built = build_step.build(*given, lambda what: warn(f"model: {what}"), first)
    _check_metrics(job, built.local if isinstance(built, Program) else built, first)
    engine = _of_program(job, built) if isinstance(built, Program) else _Measured(job, cluster, built, before, kept).engine()
    steps = engine.steps
    if not steps.local.l2_in_update and cluster.member.workers > 1:
        mixed_processors.follow(cluster, engine.follow_chief, warn, engine.model.optimizer if steps.adds_up else None)
    return engine


def _check_metrics(job: Job, local: worker_step.Local, first: Callable[[], Any]) -> None:
    """Refuse the user's own metrics whose states are not sums, tried on the first rows (`first`): made-up rows do not show every fault."""
    model, placements = local.model, local.placements
    # Keras keeps the metrics of `compile` inside one of its own.
    given = [one for one in [*CompiledModel(model).compiled_with, *model.metrics] if isinstance(one, keras.metrics.Metric)]
    if placements is None or CompiledModel(model).overridden() or not any(map(is_users, given)):
        return
    batch = first()
    if half := len(tf.nest.flatten(batch)[0]) // 2:
        halves = [tf.nest.map_structure(lambda leaf, part=part: leaf[part], batch) for part in (slice(half), slice(half, None))]
        what, trial = "model={file}:{function}".format(**job.config.model), functools.partial(undone, placements.own_code())
        with contextlib.suppress(tf.errors.OpError):
            keras_metrics.check_sums(model, halves, what, trial)


def _of_program(job: Job, program: Program) -> Engine:
    """Make the engine of a model whose step sees the whole batch; ConfigError if batch sizes are to be measured."""
    program.shares = batch_shares.given(job.config.train, program.local.cluster.member.workers)
    if program.shares is None:
        raise ConfigError(
            "train.batch_sizes: auto is not available for a model whose step sees the whole batch on all workers; give numbers, or "
            "leave it out"
        )
    size = sum(int(np.prod(variable.shape)) for variable in program.model.trainable_variables)
    return Engine(job, program, Choice("packed", program.sent, 4 * size), program.shares)


@dataclass(frozen=True)
class _Measured:
    """Maker of an engine of steps in parts; `auto` in the configuration uses measurements, by earlier launches or new."""

    job: Job
    cluster: Cluster
    local: worker_step.Local
    before: Progress
    kept: EarlierChoice

    def engine(self) -> Engine:
        """Measure, choose and make the engine; all workers call this at once."""
        chosen, choice = self._reduction()
        engine = Engine(self.job, build_step.assemble(self.local, self.job.config, chosen), choice)
        engine.shares = self._shares(engine)
        return engine

    def _reduction(self) -> tuple[Reduction, Choice]:
        job, member, local = self.job, self.cluster.member, self.local
        job.metrics.phase(Phase.CHOOSING)
        parts = batch_shares.given(job.config.train, member.workers) or [1] * member.workers
        measure = functools.partial(self._own_seconds, max(1, job.counts.global_batch * parts[member.rank] // sum(parts)))
        scaled = not local.l2_in_update and build_step.scales_loss(local.model.optimizer)
        return auto_reduction.resolve(job.config.reduction, self.cluster, local.shapes, self.before.method, measure, self.kept, scaled)

    def _shares(self, engine: Engine) -> list[int]:
        job, train = self.job, self.job.config.train
        if train.batch_sizes == batch_shares.CALIBRATED:
            job.metrics.phase(Phase.MEASURING)
        before, batch = [self.before.shares, self.kept.shares], job.counts.global_batch
        shares, measured = batch_shares.shares(
            train, self.cluster, batch, before, self._own_seconds, lambda: self._overhead_seconds(engine)
        )
        if measured or len(set(shares)) > 1:
            description = batch_shares.described(self.cluster.member.hosts, batch, shares, noun(job.manifest.table))
            job.metrics.record("shares", told=description, parts=shares, measured=measured)
        return shares

    def _own_seconds(self, batch: int) -> float:
        job, spec = self.job, self.local.spec
        some = job.manifest.order[job.counts.first_train :][:batch]
        sides = job.examples.longest(some).tolist() if isinstance(job.examples, Columns) else []
        # The user's own function may have changed the columns.
        sides = sides if len(sides) == len(spec.varying) else None
        return auto_reduction.own_seconds(self.cluster, self._timed.forward_backward_call, batch_arrays.blank(spec, batch, sides))

    def _overhead_seconds(self, engine: Engine) -> float:
        assert engine.profiled_call is not None
        with engine.undone():
            return auto_reduction.overhead_seconds(engine.profiled_call, self.local.spec)

    @functools.cached_property
    def _timed(self) -> worker_step.Local:
        """Computation without any exchange, and without advancing the run's random numbers."""
        return self.local if self.local.placements is None else dataclasses.replace(self.local, placements=None)
