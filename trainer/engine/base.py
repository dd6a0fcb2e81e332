"""Base of the engines that train a run's model: traced calls, and the state that they change; Keras' own `fit` calls them."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.checkpoint import starting_weights
from trainer.config.schema import Train
from trainer.data.batch import Batch, Call
from trainer.engine import keras_loop
from trainer.engine.job import Job
from trainer.keras_step import keras_metrics, whole_batch
from trainer.keras_step.optimizer import inner
from trainer.models.compiled_model import CompiledModel
from trainer.network.array_group import ArrayGroup
from trainer.reduction.cost_model import Choice
from trainer.step import batch_arrays, worker_step
from trainer.step.step_sums import StepSums
from trainer.user_code.callbacks import Callbacks, Loop


class Engine:
    """The calls that train and validate a model."""

    _drawn: list[np.ndarray] | None = None
    """Steps by which a validation batch advances each random generator; None: not known yet."""

    _others: Sequence[tf.Variable] = ()
    """Variables of a compiled model's own code that Keras does not track."""
    _takes_one = True
    """True if a step can be tried on a single example."""

    def __init__(self, job: Job, steps: worker_step.Steps, choice: Choice, shares: Sequence[int] = ()):
        """Trace nothing yet.

        Args:
            job: the run's job.
            steps: the model's steps; their cluster is connected.
            choice: the chosen reduction.
            shares: each worker's share of a step, by rank.
        """
        config = job.config
        self.steps, self.model, self.choice, self.shares = steps, steps.local.model, choice, list(shares)
        self.memory, self.feeds_all, self.from_chief = steps.memory, steps.feeds_all, steps.from_chief
        self.warmup = config.reduction.warmup_steps if steps.memory else 0
        """Number of the run's first steps that send uncompressed gradients."""
        self._in_a_call, self._cluster = config.train.steps_per_call, steps.local.cluster
        self._test_logs = None if steps.logs is None else keras_metrics.StepLogs()
        self._test_call = worker_step.make_test_call(steps.local, self._test_logs)
        self._make_calls()
        self.profile_every = config.telemetry.profile_every if self.profiled_call else 0
        """Number of steps per profiled step; 0: none is profiled."""
        job.metrics.record("reduction", name=choice.name, why=choice.why, measured=choice.measured)

    def _make_calls(self) -> None:
        """Make the calls that train; each is traced at its first use."""
        self._train_call, self.profiled_call = worker_step.make_train_call(self.steps), self.steps.profiled()
        self._warmup_call = worker_step.make_train_call(self.steps.uncompressed) if self.warmup else self._train_call

    @property
    def _training_calls(self) -> list[Any]:
        """Calls that train, in the same order on all workers."""
        return [self._train_call, *([self._warmup_call] if self.warmup else [])]

    @property
    def variables(self) -> list[Any]:
        """Variables that training changes and a state stores; known once the step is traced."""
        return [*self.steps.variables, *self._others]

    @functools.cached_property
    def seeds(self) -> list[tf.Variable]:
        """States of the model's random generators: see `Local.seeds`."""
        return self.steps.local.seeds

    @property
    def rate(self) -> float | None:
        """Current learning rate of a compiled model's own optimizer; None if each step receives its rate."""
        return self.steps.rate

    def trace(self) -> None:
        """Prepare all calls without changing the weights, so that no step waits for tracing or connections."""
        while True:
            try:
                for call in self._training_calls:
                    call.get_concrete_function()
                break
            except whole_batch.SeesAll as error:
                assert self.steps.local.placements is not None
                self.steps.local.placements.see_all(error)
                self._make_calls()
        self._others = [] if self.steps.local.placements is None else self._unknown()
        if self.steps.undoable:
            self._try(*self._training_calls)
        # It follows the first call, unless that call may itself be profiled.
        if self.profile_every <= self._in_a_call:
            self.trace_profiled()

    def _unknown(self) -> list[tf.Variable]:
        """Variables of the traced step that do not belong to the model, its metrics or its optimizers."""
        known = [*self.model.variables, *CompiledModel(self.model).metric_states]
        mine = {id(one) for one in [*(variable.value for variable in known), *self.steps.variables, *self.memory]}
        traced = self._train_call.get_concrete_function()
        # The order of the function's own list differs between processes.
        places = {id(captured): place for place, captured in enumerate(traced.captured_inputs)}
        return sorted((one for one in traced.variables if id(one) not in mine), key=lambda one: places[id(one.handle)])

    def trace_profiled(self) -> None:
        """Trace the profiled call, if it is not traced yet."""
        if self.profile_every and self.profiled_call and not self.profiled_call.traced:
            self._try(self.profiled_call)

    def _try(self, *calls: Callable[..., Any]) -> None:
        """Run calls with one blank example, and undo them. A step that needs more rows, or an even number, is slower at its first call."""
        if self._takes_one:
            try:
                with self.undone() as (blank, rate):
                    for call in calls:
                        call(blank, rate)
            except tf.errors.InvalidArgumentError:
                self._takes_one = False

    @contextlib.contextmanager
    def undone(self) -> Iterator[tuple[Batch, np.ndarray]]:
        """Undo the steps in the context: restore everything that training changes. Yields the input of a step with one blank example."""
        changed = [*self.variables, *self.memory]
        before = [variable.numpy() for variable in changed]
        try:
            yield batch_arrays.blank(self.steps.local.spec), np.zeros(1, np.float32)
        finally:
            for variable, value in zip(changed, before, strict=True):
                variable.assign(value)

    def follow_chief(self) -> bool:
        """Let all workers take the chief's weights after each later step; False if they can't or already do. All call this at once."""
        begins = self.from_chief.begin()
        if begins:
            self._make_calls()
        return begins

    @property
    def weights(self) -> list[Any]:
        """The model's weights, in Keras' order."""
        return [weight.value for weight in self.model.weights]

    @functools.cached_property
    def validates_in_order(self) -> bool:
        """True if a validation batch may depend on earlier batches, for example if a loss keeps a moving mean."""
        return self.steps.local.placements is not None and bool(CompiledModel(self.model).kept_by_losses)

    @functools.cached_property
    def validates(self) -> bool:
        """True if validation gives any metric."""
        return CompiledModel(self.model).validates(batch_arrays.data_signature(self.steps.local.validated or self.steps.local.spec))

    def callbacks(self, given: dict[str, str] | None, epochs: int, steps: int, is_chief: bool) -> Callbacks:
        """Load the user's callbacks; `given` is `train.callbacks`, `steps` the number of steps per epoch."""
        return Callbacks(given, self.model, epochs, steps, is_chief)

    def load(self, path: Path, given: dict[str, str], train: Train) -> list[str]:
        """Load initial weights from a file with `initial.load`; return the layers that keep their own weights."""
        left = starting_weights.load(self.model, path, given, train.skip_mismatch, train.weights_by_name, train.optimizer_state)
        for optimizer in [] if train.optimizer_state else self.steps.optimizers:
            starting_weights.begin_again(optimizer)
        return left

    @property
    def averages(self) -> bool:
        """True if `fit` replaces the weights by a moving average at its end."""
        optimizer = inner(self.model.optimizer)
        return isinstance(optimizer, keras.optimizers.Optimizer) and bool(optimizer.use_ema)

    def fit(self, loop: Loop, callbacks: Callbacks, first: int, batches: int) -> None:
        """See `fitting.fit`."""
        keras_loop.fit(self.model, loop, callbacks, first, batches)

    def read(self, variables: Sequence[Any]) -> list[np.ndarray]:
        """The values of variables, TensorFlow's."""
        return [variable.numpy() for variable in variables]

    def train(self, call: Call, batch: Batch, rates: np.ndarray, number: int) -> tuple[StepSums, dict[str, float] | None]:
        """Run the steps of a call; the first one has `number` in the run.

        Returns:
            Sums of the steps that have ended since the last call, and the seconds of a profiled step's parts.
        """
        if call.taken_apart and self.profiled_call:
            table, seconds = self.profiled_call(batch, rates)
            return StepSums(table), seconds
        train = self._warmup_call if number < self.warmup else self._train_call
        return StepSums(train(batch, rates).numpy()), None

    def settle(self) -> list[np.ndarray]:
        """Wait for all steps that `train` has begun; return the sums that it has not returned, as tables of `StepSums`, in any number."""
        return []

    def record(self, epoch: int) -> None:
        """Record the engine's own facts on the steps of an epoch."""

    def offer(self, epoch: int) -> None:
        """Offer the snapshot of an epoch to the hosts that only evaluate."""

    def evaluated(self, over: Callable[[], bool]) -> list[int]:  # noqa: ARG002
        """Wait for the hosts that only evaluate, until `over`; return the epochs that they have not evaluated."""
        return []

    @functools.cached_property
    def results(self) -> keras_metrics.Results:
        """Results of training, once the step is traced."""
        return keras_metrics.Results(self.model, self.steps.logs)

    @functools.cached_property
    def validation_results(self) -> keras_metrics.Results:
        """Results of validation."""
        if self._test_logs is None:
            return self.results
        self._test_call.get_concrete_function()
        return keras_metrics.Results(self.model, self._test_logs)

    def validate(self, batches: Iterable[tuple[int, tuple[Any, ...]]], last: int, earlier: np.ndarray | None = None) -> np.ndarray:
        """Sums of the metrics' states over numbered batches; each batch draws the random numbers that follow those of earlier batches.

        Values other than metrics follow: those of batch number `last`, after the `earlier` sums and the other batches here, or zeros.
        """
        metrics, before = CompiledModel(self.model).metric_size, self._seeds()
        sums = np.zeros(self.validation_results.size)
        for number, data in batches:
            if number and before and self._drawn is None:
                self.test(data)
                self._note_drawn(before)
            for variable, value, drawn in zip(self.seeds, before, self._drawn or before, strict=True):
                variable.assign(value + number * drawn if number else value)
            if number == last and self.validation_results.follow_states:
                self.validation_results.show(sums if earlier is None else sums + earlier)
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
        """Note the number of a batch's random draws, which is equal for all batches."""
        self._drawn = [now - value for now, value in zip(self._seeds(), before, strict=True)]

    def validated(self, cluster: ArrayGroup, batches: int) -> None:
        """Advance the random generators past all batches of a validation, each evaluated by some worker; all workers call this."""
        if self.seeds:
            drawn = np.concatenate(self._drawn or [0 * value for value in self._seeds()]).astype(np.int32)
            most = cluster.gather(drawn).max(axis=0)
            for variable, value, one in zip(self.seeds, self._seeds(), np.split(most, len(self.seeds)), strict=True):
                variable.assign(value + batches * one)

    def _seeds(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.seeds]

    def test(self, data: tuple[Any, ...]) -> np.ndarray:
        """Sums of the metrics' states over a batch, then the values that are no metrics."""
        sums: np.ndarray = self._cluster.local(self._test_call(data)).numpy()
        return sums
