"""Small Keras programs of many kinds, each trained by `fit` on one worker or on two."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, losses, optimizers

from trainer.keras_fit.distribute import Peers, distribute
from trainer.models.compiled_model import CompiledModel

BATCH = 33
"""Rows of a batch, which two workers divide unevenly."""


@dataclass(frozen=True)
class Program:
    """How to build a compiled model, and how to make a number of rows: `(x, y)` or `(x, y, sample_weight)`, each a structure of arrays."""

    build: Callable[[], keras.Model]
    rows: Callable[[np.random.Generator, int], tuple[Any, ...]]


def dense(optimizer: Any, regularizer: Any = None, loss: Any = "mse") -> keras.Model:
    """Two dense layers."""
    hidden = layers.Dense(16, activation="tanh", kernel_regularizer=regularizer)
    model = keras.Sequential([keras.Input((8,)), hidden, layers.Dense(3)])
    model.compile(optimizer=optimizer, loss=loss, metrics=["mae"])
    return model


def table(random: np.random.Generator, count: int) -> tuple[Any, ...]:
    """Eight numbers to three."""
    x = random.normal(size=(count, 8)).astype(np.float32)
    return x, np.tanh(x @ random.normal(size=(8, 3)).astype(np.float32))


def weighted_table(random: np.random.Generator, count: int) -> tuple[Any, ...]:
    """A table with a weight for each row."""
    return *table(random, count), random.uniform(0, 2, count).astype(np.float32)


def two_inputs() -> keras.Model:
    """A dict of inputs, a dict of outputs, a loss for each, and their weights."""
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((5,), name="b")}
    shared = layers.Dense(12, activation="relu")(layers.Concatenate()([inputs["a"], inputs["b"]]))
    outputs = {"size": layers.Dense(1, name="size")(shared), "kind": layers.Dense(3, name="kind")(shared)}
    model = keras.Model(inputs, outputs)
    kinds = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adamw", loss={"size": "mae", "kind": kinds}, loss_weights={"size": 0.3, "kind": 1.0}, metrics={"kind": ["accuracy"]})
    return model


def two_inputs_rows(random: np.random.Generator, count: int) -> tuple[Any, ...]:
    """For `two_inputs`."""
    x = {"a": random.normal(size=(count, 4)).astype(np.float32), "b": random.normal(size=(count, 5)).astype(np.float32)}
    return x, {"size": x["a"].sum(1, keepdims=True), "kind": random.integers(0, 3, count)}


def tagger(hidden_layer: layers.Layer, reduction: str = "sum_over_batch_size") -> keras.Model:
    """A tag for each word of a sentence, padding masked: how many words count differs from worker to worker."""
    words = keras.Input((None,), dtype="int32")
    hidden = hidden_layer(layers.Embedding(20, 6, mask_zero=True)(words))
    model = keras.Model(words, layers.Dense(4)(hidden))
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction), weighted_metrics=["accuracy"])
    return model


def sentences(random: np.random.Generator, count: int) -> tuple[Any, ...]:
    """Up to 9 words, padded with 0."""
    words = random.integers(1, 20, (count, 9))
    words[np.arange(9) >= random.integers(1, 10, count)[:, np.newaxis]] = 0
    return words.astype(np.int32), words % 4


class Penalised(layers.Layer):
    """Adds a loss of its own."""

    def call(self, inputs: Any) -> Any:
        """The inputs."""
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def penalised() -> keras.Model:
    """A loss added by a layer, a mean over the batch, beside a penalty of the weights and a constraint."""
    hidden = layers.Dense(16, kernel_regularizer=keras.regularizers.L1(0.01), kernel_constraint=keras.constraints.MaxNorm(1.0))
    model = keras.Sequential([keras.Input((8,)), hidden, Penalised(), layers.Dense(3, activity_regularizer="l2")])
    model.compile("adam", loss="mse")
    return model


class Adversarial(keras.Model):
    """A generator and a discriminator, each with an optimizer of its own; noise comes with the data."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([keras.Input((2,)), layers.Dense(16, activation="relu"), layers.Dense(8)])
        self.discriminator = keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(1)])
        self.opponents = {"generator": optimizers.Adam(1e-3), "discriminator": optimizers.Adam(2e-3)}
        self.error = losses.BinaryCrossentropy(from_logits=True)

    def call(self, inputs: Any) -> Any:
        """The discriminator's verdict."""
        return self.discriminator(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Each network once."""
        real, noise = data
        with tf.GradientTape() as tape:
            verdicts = self.discriminator(real), self.discriminator(self.generator(noise))
            loss = self.error(tf.ones_like(verdicts[0]), verdicts[0]) + self.error(tf.zeros_like(verdicts[1]), verdicts[1])
        self._apply("discriminator", tape, loss)
        with tf.GradientTape() as tape:
            verdict = self.discriminator(self.generator(noise))
            fooled = self.error(tf.ones_like(verdict), verdict)
        self._apply("generator", tape, fooled)
        return {"discriminator": loss, "generator": fooled}

    def _apply(self, name: str, tape: tf.GradientTape, loss: Any) -> None:
        weights = getattr(self, name).trainable_weights
        self.opponents[name].apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


def adversarial() -> keras.Model:
    """See `Adversarial`."""
    model = Adversarial()
    model.compile()
    return model


def pictures_and_noise(random: np.random.Generator, count: int) -> tuple[Any, ...]:
    """For `Adversarial`."""
    return random.normal(2, 1, (count, 8)).astype(np.float32), random.normal(size=(count, 2)).astype(np.float32)


def half(**more: Any) -> Any:
    """Stochastic gradient descent whose loss is scaled, with more options."""
    return optimizers.LossScaleOptimizer(optimizers.SGD(0.05, momentum=0.9, **more), initial_scale=1024.0)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    name.lower(): getattr(optimizers, name)
    for name in ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "Nadam", "RMSprop", "SGD", "Muon")
    if hasattr(optimizers, name)
}
SETTINGS: dict[str, Callable[[], Any]] = {
    "nesterov": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "amsgrad": lambda: optimizers.Adam(amsgrad=True),
    "clipnorm": lambda: optimizers.SGD(0.05, clipnorm=0.05),
    "clipvalue": lambda: optimizers.SGD(0.05, clipvalue=0.01),
    "global_clipnorm": lambda: optimizers.SGD(0.05, global_clipnorm=0.1),
    "weight_decay": lambda: optimizers.SGD(0.05, weight_decay=0.01),
    "moving_average": lambda: optimizers.Adam(use_ema=True, ema_overwrite_frequency=10),
    "accumulation": lambda: optimizers.Adam(gradient_accumulation_steps=4),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.CosineDecay(0.01, 40, warmup_target=0.02, warmup_steps=10)),
    "loss_scale": half,
    "loss_scale_and_clipping": lambda: half(global_clipnorm=0.1),
    "static_loss_scale": lambda: optimizers.Adam(loss_scale_factor=128.0),
}


def with_optimizer(make: Callable[[], Any]) -> Program:
    """Two dense layers and this optimizer."""
    return Program(lambda: dense(make()), table)


PROGRAMS = {name: with_optimizer(make) for name, make in (OPTIMIZERS | SETTINGS).items()} | {
    "row_weights": Program(lambda: dense("adam"), weighted_table),
    "sum": Program(lambda: dense(optimizers.SGD(0.001), "l2", losses.MeanSquaredError(reduction="sum")), table),
    "mean_with_sample_weight": Program(
        lambda: dense("adam", loss=losses.MeanSquaredError(reduction="mean_with_sample_weight")), weighted_table
    ),
    "function": Program(lambda: dense("adam", loss=lambda y, p: keras.ops.abs(y - p) ** 1.5), table),
    "scalar_function": Program(lambda: dense("adam", "l2", loss=lambda y, p: keras.ops.mean(keras.ops.abs(y - p))), table),
    "penalised": Program(penalised, table),
    "two_inputs": Program(two_inputs, two_inputs_rows),
    "masked": Program(lambda: tagger(layers.LSTM(8, return_sequences=True)), sentences),
    "masked_mean_with_sample_weight": Program(lambda: tagger(layers.Dense(8, "relu"), "mean_with_sample_weight"), sentences),
    "masked_sum": Program(lambda: tagger(layers.Dense(8, "relu"), "sum"), sentences),
    "adversarial": Program(adversarial, pictures_and_noise),
}


def made(name: str, count: int) -> tuple[keras.Model, tuple[Any, ...]]:
    """A program's model with its initial weights, and `count` rows."""
    keras.utils.set_random_seed(3)
    program = PROGRAMS[name]
    return program.build(), program.rows(np.random.default_rng(5), count)


def weights(model: keras.Model) -> np.ndarray:
    """All weights as one array."""
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def trained(name: str, steps: int, peers: Peers | None = None) -> tuple[np.ndarray, dict[str, float]]:
    """Weights and metrics after Keras' own training on one worker, or on this one of several."""
    model, rows = made(name, BATCH * steps)
    # Otherwise `fit` would trace the step twice, the second time with the variables that the first has created.
    model._symbolic_build(data_batch=tf.nest.map_structure(lambda array: array[:BATCH], rows))
    if peers is not None:
        distribute(model, peers)
    model.fit(tf.data.Dataset.from_tensor_slices(rows).batch(BATCH), epochs=1, verbose=0)
    metrics = {metric: float(value) for metric, value in model.get_metrics_result().items()}
    count = CompiledModel(model).loss_count
    if count is not None and not count.numpy():
        del metrics["loss"]  # Keras says 0 of a loss that a step of the model's own never counted.
    return weights(model), metrics
