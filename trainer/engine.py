"""What a run's steps are made of: the traced calls of a model, how its gradients are sent, and how a step is divided over the workers."""

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import assembly, auto_reduction, balance, fitting, initial, keras_metrics, reduction, step, whole
from trainer.agreement import Agreement
from trainer.callbacks import Callbacks, Loop
from trainer.checkpoint import Progress
from trainer.cluster import Cluster
from trainer.config import Reduction, Train
from trainer.data.columns import Columns
from trainer.data.pipeline import Batch, Call
from trainer.data.spec import noun
from trainer.errors import ConfigError
from trainer.job import Job
from trainer.kept import Kept
from trainer.optimizer import inner
from trainer.processors import FromChief
from trainer.program import Program
from trainer.reduction import chain
from trainer.reduction.cost_model import Choice

Rows = tuple[np.ndarray, dict[str, float] | None]
"""A row of sums for each step of a call, and the seconds of the parts of a profiled step."""


class Engine(abc.ABC):
    """The calls that train a model."""

    model: keras.Model
    choice: Choice
    shares: list[int]
    """Each worker's share of a step, by rank."""
    warmup: int = 0
    """How many of the run's first steps send uncompressed."""
    profile_every: int = 0
    """Every how many steps one is profiled; 0: none."""
    variables: list[Any]
    """What training changes and a state holds, known once it is traced."""
    memory: Sequence[Any] = ()
    """What differs between workers: see `reduction.Method`."""
    results: keras_metrics.Results
    """Of training; and of validation, where that does not differ."""
    feeds_all = False
    """Whether each worker is fed the whole batch."""
    from_chief: FromChief
    """Whether all workers take the chief's weights after each step."""
    seeds: Sequence[tf.Variable] = ()
    """States of the model's random generators, `[2]`, where a result does not depend on the number of workers."""
    _drawn: list[np.ndarray] | None = None
    """By how much a batch of the validation moves each of them; None: not known yet."""

    @property
    @abc.abstractmethod
    def rate(self) -> float | None:
        """The current learning rate of a compiled model's own optimizer; None: each step is given one."""

    @abc.abstractmethod
    def trace(self) -> None:
        """Prepare all calls without a trace in the weights, so that no step waits for tracing or connections."""

    def trace_profiled(self) -> None:  # noqa: B027 - nothing, where no step is profiled
        """Trace what profiles a step, if it is not yet."""

    @abc.abstractmethod
    def _make_calls(self) -> None:
        """Make the calls that train, which are traced when they are called first."""

    def follow_chief(self) -> bool:
        """Let all workers take the chief's weights after each step from now on, False if they can't, or do; all call it at once."""
        begins = self.from_chief.begin()
        if begins:
            self._make_calls()
        return begins

    @property
    def weights(self) -> list[Any]:
        """The model's weights, in Keras' order."""
        return [weight.value for weight in self.model.weights]

    @property
    def validates(self) -> bool:
        """Return whether validation gives any metric."""
        return keras_metrics.validates(self.model)

    def callbacks(self, given: dict[str, str] | None, epochs: int, steps: int, is_chief: bool) -> Callbacks:
        """Load the user's callbacks; `given` is `train.callbacks`, `steps` are those of an epoch."""
        return Callbacks(given, self.model, epochs, steps, is_chief)

    def load(self, path: Path, given: dict[str, str], train: Train) -> list[str]:
        """Load initial weights from a file, as `initial.load`; return the layers that keep their own."""
        left = initial.load(self.model, path, given, train.skip_mismatch, train.weights_by_name, train.optimizer_state)
        for optimizer in [] if train.optimizer_state else self.optimizers():
            initial.begin_again(optimizer)
        return left

    @abc.abstractmethod
    def optimizers(self) -> list[Any]:
        """The Keras optimizers that the model's function made."""

    @property
    def averages(self) -> bool:
        """Whether `fit` puts a moving average in the place of the weights at its end."""
        optimizer = inner(self.model.optimizer)
        return isinstance(optimizer, keras.optimizers.Optimizer) and bool(optimizer.use_ema)

    def fit(self, loop: Loop, callbacks: Callbacks, first: int, batches: int) -> None:
        """See `fitting.fit`."""
        fitting.fit(self.model, loop, callbacks, first, batches)

    def read(self, variables: Sequence[Any]) -> list[np.ndarray]:
        """The values of variables, TensorFlow's."""
        return [variable.numpy() for variable in variables]

    @abc.abstractmethod
    def train(self, call: Call, batch: Batch, rates: np.ndarray, number: int) -> Rows:
        """Run the steps of a call, the first of which is `number` of the run; return the rows of those that have ended since."""

    def settle(self) -> list[np.ndarray]:
        """Wait for all steps that `train` has begun; the rows of those that it did not return, in any number of arrays."""
        return []

    def record(self, epoch: int) -> None:  # noqa: B027 - nothing, where all workers take the same steps
        """Record what is to be known of the steps of an epoch."""

    def offer(self, epoch: int) -> None:  # noqa: B027 - nothing, where no host only evaluates
        """Let the hosts that only evaluate have the snapshot of an epoch."""

    def evaluated(self, over: Callable[[], bool]) -> list[int]:  # noqa: ARG002
        """Wait for those hosts, until it is `over`; the epochs that they have not evaluated then."""
        return []

    @property
    def validation_results(self) -> keras_metrics.Results:
        """Of validation."""
        return self.results

    def validate(self, batches: Iterable[tuple[int, tuple[Any, ...]]], last: int) -> np.ndarray:
        """The sums of the metrics' states over batches, each with its number; each draws what it would draw after those before it.

        What is no metric follows: of batch number `last`, or zeros.
        """
        metrics, before = keras_metrics.size(self.model), self._seeds()
        sums = np.zeros(self.validation_results.size)
        for number, data in batches:
            if number and before and self._drawn is None:
                self.test(data)
                self._note_drawn(before)
            for variable, value, drawn in zip(self.seeds, before, self._drawn or before, strict=True):
                variable.assign(value + number * drawn if number else value)
            row = self.test(data)
            sums[:metrics] += row[:metrics]
            if number == last:
                sums[metrics:] = row[metrics:]
            if self._drawn is None:
                self._note_drawn(before)
        for variable, value in zip(self.seeds, before, strict=True):
            variable.assign(value)
        return sums

    def _note_drawn(self, before: Sequence[np.ndarray]) -> None:
        """Note what a batch drew, which is the same for all."""
        self._drawn = [now - value for now, value in zip(self._seeds(), before, strict=True)]

    def validated(self, cluster: Agreement, batches: int) -> None:
        """All batches of a validation were drawn for, each by some worker; all workers call it."""
        if self.seeds:
            drawn = np.concatenate(self._drawn or [0 * value for value in self._seeds()]).astype(np.int32)
            most = cluster.gather(drawn).max(axis=0)
            for variable, value, one in zip(self.seeds, self._seeds(), np.split(most, len(self.seeds)), strict=True):
                variable.assign(value + batches * one)

    def _seeds(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.seeds]

    @abc.abstractmethod
    def test(self, data: tuple[Any, ...]) -> np.ndarray:
        """The sums of the metrics' states over a batch, then what is no metric."""


class Gradients(Engine):
    """One optimizer's gradients, which any reduction may compress, for models with Keras' own `train_step`."""

    def __init__(self, job: Job, cluster: Cluster, local: step.Local, before: Progress, kept: Kept):
        """Measure and choose where the configuration says `auto`; all workers do so at once."""
        self._job, self._cluster, self._local, self.model = job, cluster, local, local.model
        self._before, self._kept = before, kept
        config, self._forward_backward = job.config, step.make_forward_backward_call(local)
        # What is timed exchanges nothing, and draws no random numbers that count on.
        own = dataclasses.replace(local, seeing_all=None)
        self._timed = self._forward_backward if local.seeing_all is None else step.make_forward_backward_call(own)
        parts, method = assembly.assemble(local, config, self._choose())
        self._optimizer, self.memory, self.from_chief, self._parts = parts.optimizer, method.memory, parts.from_chief, parts
        self.warmup = config.reduction.warmup_steps if method.memory else 0
        self._make_calls()
        self._test_call = step.make_test_call(local)
        self.results, self.profile_every = keras_metrics.Results(self.model), config.telemetry.profile_every
        self.seeds = [] if local.seeing_all is None else [variable.value for variable in step.seeds(self.model)]
        self.variables = [variable.value for variable in self.model.weights] + [*self.seeds, *self._optimizer.slots]
        self.shares = self._divide()

    def _make_calls(self) -> None:
        parts = self._parts
        self._train_call, self._profiled_call = step.make_train_call(parts), step.ProfiledCall(parts, self._forward_backward)
        uncompressed = chain.make(reduction.plain(), self._cluster.group.sum, self._cluster.direct)
        self._warmup_call = step.make_train_call(dataclasses.replace(parts, reduction=uncompressed))

    @property
    def rate(self) -> float | None:
        """See `Engine`."""
        return self._optimizer.rate

    def optimizers(self) -> list[Any]:
        """See `Engine`."""
        return [] if self._local.l2_in_update else [self.model.optimizer]

    def _choose(self) -> Reduction:
        job, cluster = self._job, self._cluster
        job.metrics.phase("choosing how to send gradients")
        member = cluster.member
        parts = balance.given(job.config.train, member.workers) or [1] * member.workers
        measure = functools.partial(self._own_seconds, max(1, job.counts.global_batch * parts[member.rank] // sum(parts)))
        shapes, scaled = self._local.shapes, any(map(assembly.scales_loss, self.optimizers()))
        chosen, self.choice = auto_reduction.resolve(
            job.config.reduction, cluster, shapes, self._before.method, measure, self._kept, scaled
        )
        job.metrics.record("reduction", name=self.choice.name, why=self.choice.why, measured=self.choice.measured)
        return chosen

    def _divide(self) -> list[int]:
        job, train = self._job, self._job.config.train
        if train.batch_sizes == balance.CALIBRATED:
            job.metrics.phase("measuring the workers")
        before, batch = [self._before.shares, self._kept.shares], job.counts.global_batch
        shares, measured = balance.shares(train, self._cluster, batch, before, self._own_seconds, self._overhead_seconds)
        if measured or len(set(shares)) > 1:
            description = balance.described(self._cluster.member.hosts, batch, shares, noun(job.manifest.table))
            job.metrics.record("shares", told=description, parts=shares, measured=measured)
        return shares

    def _own_seconds(self, batch: int) -> float:
        job, spec = self._job, self._local.spec
        some = job.manifest.order[job.counts.validation_images :][:batch]
        sides = job.examples.longest(some).tolist() if isinstance(job.examples, Columns) else []
        # A function of the user's own may have made other columns of them.
        sides = sides if len(sides) == len(spec.varying) else None
        return auto_reduction.own_seconds(self._cluster, self._timed, step.blank(spec, batch, sides))

    def _overhead_seconds(self) -> float:
        with self._undone():
            return auto_reduction.overhead_seconds(self._profiled_call, self._local.spec)

    def trace(self) -> None:
        """Run the first call's kinds of step on a blank example and undo them."""
        blank, rates = step.blank(self._local.spec), np.zeros(1, np.float32)
        with self._undone():
            for call in [self._train_call, *([self._warmup_call] if self.warmup else [])]:
                call(blank, rates)
        # After the first call, unless that call could be profiled itself.
        if self.profile_every <= self._job.config.train.steps_per_call:
            self.trace_profiled()

    def trace_profiled(self) -> None:
        """See `Engine`."""
        if self.profile_every and not self._profiled_call.traced:
            with self._undone():
                self._profiled_call(step.blank(self._local.spec), np.zeros(1, np.float32))

    @contextlib.contextmanager
    def _undone(self) -> Iterator[None]:
        """Undo the steps run inside: restore everything that training changes."""
        changed = [*self.variables, *self.memory]
        before = [np.array(variable.numpy()) for variable in changed]
        yield
        for variable, value in zip(changed, before, strict=True):
            variable.assign(value)

    def train(self, call: Call, batch: Batch, rates: np.ndarray, number: int) -> Rows:
        """See `Engine`."""
        if call.taken_apart:
            return self._profiled_call(batch, rates)
        train = self._warmup_call if number < self.warmup else self._train_call
        return train(batch, rates).numpy(), None

    def test(self, data: tuple[Any, ...]) -> np.ndarray:
        """See `Engine`."""
        return self._test_call(data)


class OwnSteps(Engine):
    """A `train_step` that sees the whole batch on all workers: gradients are sent uncompressed, and no step is profiled."""

    feeds_all = True

    def __init__(self, job: Job, cluster: Cluster, program: Program):
        """Refuse (ConfigError) what only works with one optimizer's gradients."""
        self._program, self.model, train = program, program.model, job.config.train
        shares = balance.given(train, cluster.member.workers)
        if shares is None:
            raise ConfigError(
                "train.batch_sizes: auto is not available for a model whose step sees the whole batch on all workers; give numbers, or "
                "leave it out"
            )
        self.shares = program.shares = shares
        self.from_chief = program.from_chief
        self.seeds = [variable.value for variable in step.seeds(self.model)]
        self._test_logs = keras_metrics.StepLogs()
        test = functools.partial(step.test_sums, self.model, True, draws=True, logs=self._test_logs)
        self._test_call = tf.function(test, input_signature=[step.rows(job.examples.spec)], autograph=False)
        size = sum(int(np.prod(variable.shape)) for variable in self.model.trainable_variables)
        why = program.sent
        self.choice = Choice("packed", why, 4 * size)
        job.metrics.record("reduction", name=self.choice.name, why=why, measured=False)

    @property
    def rate(self) -> float | None:
        """See `Engine`."""
        return self._program.rate

    def optimizers(self) -> list[Any]:
        """See `Engine`."""
        return self._program.optimizers

    def trace(self) -> None:
        """Trace the call, again where a layer must see the whole batch; nothing runs."""
        while True:
            self._make_calls()
            try:
                self._call.get_concrete_function()
                break
            except whole.SeesAll as error:
                self._program.placements.see_all(error)
        self.variables = self._program.variables
        self.results = keras_metrics.Results(self.model, self._program.logs)

    @functools.cached_property
    def validation_results(self) -> keras_metrics.Results:
        """See `Engine`."""
        self._test_call.get_concrete_function()
        return keras_metrics.Results(self.model, self._test_logs)

    def _make_calls(self) -> None:
        self._call = step.make_train_call(self._program)

    def train(self, call: Call, batch: Batch, rates: np.ndarray, number: int) -> Rows:  # noqa: ARG002 - every step is the same
        """See `Engine`."""
        return self._call(batch, rates).numpy(), None

    def test(self, data: tuple[Any, ...]) -> np.ndarray:
        """See `Engine`."""
        return self._test_call(data).numpy()
