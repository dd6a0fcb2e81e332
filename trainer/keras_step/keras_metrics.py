"""A model's metrics over all workers: nearly every Keras metric keeps sums, so the states of all workers' metrics add up."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.common.errors import ConfigError
from trainer.models.compiled_model import CompiledModel


def check_sums(
    model: keras.Model,
    halves: Sequence[Any],
    what: str,
    trial: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Refuse a metric whose state after two batches is not the sum of its states after each: workers' states are added up.

    Args:
        model: compiled.
        halves: two batches.
        what: the model, in words.
        trial: undoes what else a step moves.

    Raises:
        ConfigError: there is one.
    """

    def after(batches: Sequence[Any]) -> np.ndarray:
        with trial():
            return _states_after(model, batches)

    first, second, both = after(halves[:1]), after(halves[1:]), after(halves)
    apart = ~np.isclose(both, first + second, rtol=1e-3, atol=1e-5) & np.isfinite(both)
    if apart.any():
        raise ConfigError(
            f"{what}: the metric {Results(model).columns[int(np.argmax(apart))]} keeps no sums: its state after two batches is not the sum "
            "of its states after each, so it can't be computed over several workers. Fix: keep sums and counts in its state, and divide in "
            "result(), as keras.metrics.Mean does; or leave it out"
        )


def _states_after(model: keras.Model, batches: Sequence[Any]) -> np.ndarray:
    """Changes of the metrics' states by validation on batches, flattened."""
    every = CompiledModel(model).metric_states
    values = [variable.value for variable in every]
    for batch in batches:
        weights = [(variable, variable.value) for variable in model.trainable_variables]
        scope = keras.StatelessScope([*zip(every, values, strict=True), *weights], collect_losses=True)
        with scope:
            model.test_step(batch)
        values = [scope.get_current_value(variable) for variable in every]
    moved = [np.ravel(value - variable.value) for variable, value in zip(every, values, strict=True)]
    return np.concatenate([*moved, np.zeros(0)])


class StepLogs:
    """Logs that a step of a model's own returns, known once the step is traced."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.names: list[str] = []
        """Keys of what it returns, in order: `fit` shows these."""
        self.values: dict[str, tuple[int, ...]] = {}
        """Shapes of all of them where they are others than the model's metrics: `fit` shows them as they are after the last step."""

    def read(self, model: keras.Model, returned: Any, tracks_loss: bool) -> list[tf.Tensor]:
        """Note what a step has returned while it is traced; the numbers behind `values`, float32.

        Args:
            model: compiled.
            returned: numbers by name, or dicts of these, as the metrics of `compile` have one as their result.
            tracks_loss: whether the step updated the loss tracker that Keras gives every model.
        """
        returned = _flat(returned)
        tracked = set(model.get_metrics_result())
        if CompiledModel(model).loss_count is not None and not tracks_loss:
            tracked.discard("loss")
        self.names = list(returned)
        values = {} if set(returned) == tracked else {name: tf.cast(value, tf.float32) for name, value in returned.items()}
        # Of what has a number for each row, there is no such thing for all steps.
        values = {name: value if value.shape.is_fully_defined() else tf.reduce_mean(value) for name, value in values.items()}
        self.values = {name: tuple(value.shape) for name, value in values.items()}
        return list(values.values())


def _flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """As `fit` flattens them."""
    pairs = [_flat(value).items() if isinstance(value, dict) else [(name, value)] for name, value in logs.items()]
    return {name: value for each in pairs for name, value in each}


class Results:
    """A model's metrics for given sums of their states."""

    def __init__(self, model: keras.Model, logs: StepLogs | None = None):
        """Trace at the first call; `logs` are those of a traced step of the model's own, whose values follow the sums."""
        self._logs = logs
        self._values = {} if logs is None else logs.values
        states, count = CompiledModel(model).metric_states, CompiledModel(model).loss_count
        self._model, self._shapes = model, [tuple(variable.shape) for variable in states]
        self._sizes = [math.prod(shape) for shape in self._shapes]
        self._names: list[str] = []
        counts = [variable is count for variable, size in zip(states, self._sizes, strict=True) for _ in range(size)]
        self._loss_count = counts.index(True) if True in counts else None
        self._call = tf.function(self._compute, input_signature=[tf.TensorSpec([sum(self._sizes)], tf.float32)], autograph=False)

    @property
    def size(self) -> int:
        """How many numbers the sums and values are."""
        return sum(self._sizes) + sum(map(math.prod, self._values.values()))

    @property
    def follow_states(self) -> bool:
        """True if the last step's values depend on the metrics' states before it."""
        return bool(self._values)

    @property
    def columns(self) -> list[str]:
        """The name behind each of the sums."""
        # Keras keeps those given to compile() in one metric.
        every = [one for metric in self._model.metrics for one in (metric, *getattr(metric, "metrics", ()))]
        names = {id(variable): metric.name for metric in every for variable in metric.variables}
        sized = zip(CompiledModel(self._model).metric_states, self._sizes, strict=True)
        values = [name for name, shape in self._values.items() for _ in range(math.prod(shape))]
        return [names[id(variable)] for variable, size in sized for _ in range(size)] + values

    def __call__(self, sums: Sequence[float] | np.ndarray) -> dict[str, Any]:
        """By name, a float, or an array of a metric with several results; no loss where none was counted.

        `sums`: as of `summed`; validation has metrics only.
        """
        numbers, count = np.asarray(sums, np.float32), sum(self._sizes)
        arrays = [value.numpy() for value in self._call(numbers[:count])]
        results = dict(zip(self._names, arrays, strict=True))
        if self._loss_count is not None and not numbers[self._loss_count]:
            del results["loss"]
        ends = np.cumsum([math.prod(shape) for shape in self._values.values()])
        parts = np.split(numbers[count:], ends[:-1])
        every = results | {name: part.reshape(shape) for (name, shape), part in zip(self._values.items(), parts, strict=False)}
        logs = every if self._logs is None else {name: every[name] for name in self._logs.names if name in every}
        return {name: array if array.ndim else float(array) for name, array in logs.items()}

    def summed(self, before: Sequence[float] | np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Argument of a call: the changes of the metrics' states, flattened and summed over steps, and the values of the last step.

        Args:
            before: the result before these steps; empty if they are the first.
            rows: the metrics' columns of each step, `[steps, columns]`, at least one.
        """
        count, rows = sum(self._sizes), rows.astype(np.float64)
        sums = rows[:, :count].sum(axis=0)
        return np.concatenate([sums + before[:count] if len(before) else sums, rows[-1, count:]])

    def show(self, sums: Sequence[float] | np.ndarray) -> None:
        """Let the model's metrics have these sums as their states."""
        numbers, places = np.asarray(sums, np.float32), np.cumsum([0, *self._sizes])
        for variable, place, shape in zip(CompiledModel(self._model).metric_states, places, self._shapes, strict=False):
            variable.assign(numbers[place : place + math.prod(shape)].reshape(shape))

    def _parts(self, sums: tf.Tensor) -> list[tf.Tensor]:
        """Sums of each variable; a model may have no metrics."""
        return tf.split(sums, self._sizes) if self._sizes else []

    def _compute(self, sums: tf.Tensor) -> list[tf.Tensor]:
        variables = CompiledModel(self._model).metric_states
        values = [
            tf.cast(tf.reshape(part, shape), variable.dtype)
            for variable, part, shape in zip(variables, self._parts(sums), self._shapes, strict=True)
        ]
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            results = self._model.get_metrics_result()
        self._names = list(results)
        return [tf.cast(result, tf.float32) for result in results.values()]
