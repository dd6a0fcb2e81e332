"""Random small Keras programs: what each consists of, its data and its model."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, losses, metrics, ops, optimizers, regularizers


@dataclass(frozen=True)
class Program:
    """A program; the defaults are the smallest one."""

    seed: int = 0
    rows: int = 8
    batch: int = 8
    epochs: int = 1
    workers: int = 2
    inputs: tuple[str, ...] = ("numbers",)
    body: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("numbers",)
    loss: tuple[str, ...] = ("mse",)
    metric: tuple[str, ...] = ("",)
    weights: str = ""
    optimizer: str = "SGD"
    settings: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    step: str = ""
    per_call: int = 1
    validation: int = 0
    eager: bool = False
    way: str = "script"
    """`script`: by `lockstep.distribute`; `run`: by `train.yml -e model=`."""
    stop: int = 0
    """Steps after which a run stops, and goes on; 0: it does not."""
    hooks: bool = True
    """Whether a callback has hooks of batches."""
    tags: tuple[str, ...] = field(default=(), compare=False)


INPUTS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "numbers": lambda numbers, rows: numbers.normal(size=(rows, 5)),
    "tokens": lambda numbers, rows: np.where(numbers.random((rows, 6)) < 0.7, numbers.integers(1, 12, (rows, 6)), 0),
    "series": lambda numbers, rows: numbers.normal(size=(rows, 5, 3)),
    "image": lambda numbers, rows: numbers.normal(size=(rows, 6, 6, 2)),
    "picture": lambda numbers, rows: numbers.integers(0, 256, (rows, 8, 8, 3)),
}
ENTRIES: dict[str, Callable[[], keras.Layer]] = {
    "numbers": lambda: layers.Dense(6, activation="tanh"),
    "tokens": lambda: layers.Embedding(12, 4, mask_zero=True),
    "series": lambda: layers.Masking(0.0),
    "image": lambda: layers.Conv2D(3, 3, activation="relu"),
    "picture": lambda: layers.MixUp(seed=3),
}
AFTER: dict[str, Callable[[], list[keras.Layer]]] = {
    "numbers": list,
    "tokens": lambda: [layers.LSTM(5, dropout=0.2)],
    "series": lambda: [layers.GRU(4, recurrent_dropout=0.1)],
    "picture": lambda: [
        layers.RandomFlip(seed=4),
        layers.RandomBrightness(0.2, seed=5),
        layers.RandomPosterization(4, seed=6),
        layers.Rescaling(1 / 255),
        layers.GlobalAveragePooling2D(),
    ],
    "image": lambda: [layers.BatchNormalization(), layers.SpatialDropout2D(0.2), layers.GlobalAveragePooling2D()],
}


@keras.saving.register_keras_serializable("oracle")
class Counting(layers.Layer):
    """Keeps an average of its own, as a codebook does."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.seen.assign_add(ops.cast(ops.shape(x)[0], self.seen.dtype))
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
        return x - self.mean


@keras.saving.register_keras_serializable("oracle")
class Mixing(layers.Layer):
    """Sees what the rows of a batch have in common."""

    def call(self, x: Any) -> Any:
        return x + ops.mean(ops.square(x), axis=0, keepdims=True)


@keras.saving.register_keras_serializable("oracle")
class Adding(layers.Layer):
    """Adds a sum over rows as a loss, and a mean."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * ops.sum(ops.square(x)))
        self.add_loss(0.1 * ops.mean(ops.abs(x)))
        return x


@keras.saving.register_keras_serializable("oracle")
class Noisy(layers.Layer):
    """Draws by itself."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return x + 0.1 * keras.random.normal(ops.shape(x), dtype=x.dtype, seed=self.seed_generator) if training else x


BODY: dict[str, Callable[[], keras.Layer]] = {
    "dense": lambda: layers.Dense(7, activation="relu"),
    "penalised": lambda: layers.Dense(6, activation="tanh", kernel_regularizer="l2", bias_regularizer=regularizers.L1(0.01)),
    "active": lambda: layers.Dense(6, activation="tanh", activity_regularizer="l2"),
    "constrained": lambda: layers.Dense(6, kernel_constraint=keras.constraints.MaxNorm(0.7)),
    "dropout": lambda: layers.Dropout(0.3),
    "gaussian": lambda: layers.GaussianNoise(0.1),
    "alpha": lambda: layers.AlphaDropout(0.2),
    "batch_norm": lambda: layers.BatchNormalization(momentum=0.8),
    "layer_norm": layers.LayerNormalization,
    "group_norm": lambda: layers.GroupNormalization(1),
    "unit_norm": layers.UnitNormalization,
    "spectral": lambda: layers.SpectralNormalization(layers.Dense(6)),
    "prelu": layers.PReLU,
    "counting": Counting,
    "mixing": Mixing,
    "adding": Adding,
    "noisy": Noisy,
    "penalty": lambda: layers.ActivityRegularization(l1=0.01),
}


def contrasting(y: Any, output: Any) -> Any:
    """Each row against all others of its batch."""
    near = ops.matmul(ops.normalize(output, axis=-1), ops.transpose(ops.normalize(y, axis=-1))) * 3
    return ops.mean(ops.logsumexp(near, axis=-1) - ops.diagonal(near))


def root(y: Any, output: Any) -> Any:
    """A root over the whole batch."""
    return ops.sqrt(ops.mean(ops.square(y - output)) + 1e-3)


class Rooted(metrics.Metric):
    """A mean of roots of batches: no sum over rows."""

    def __init__(self, name: str = "rooted", **settings: Any):
        super().__init__(name=name, **settings)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y: Any, output: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(ops.sqrt(ops.mean(ops.square(ops.cast(y, output.dtype) - output))))
        self.count.assign_add(1.0)

    def result(self) -> Any:
        return ops.divide_no_nan(self.total, self.count)


OUTPUTS = {"numbers": 3, "yes": 1, "kinds": 4}
"""Units of an output."""
LOSSES: dict[str, dict[str, Callable[[], Any]]] = {
    "numbers": {
        "mse": lambda: "mse",
        "mae": lambda: "mae",
        "huber": losses.Huber,
        "log_cosh": lambda: "log_cosh",
        "cosine": losses.CosineSimilarity,
        "sum": lambda: losses.MeanSquaredError(reduction="sum"),
        "weighted_mean": lambda: losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        "root": lambda: root,
        "contrasting": lambda: contrasting,
    },
    "yes": {
        "crossentropy": lambda: losses.BinaryCrossentropy(from_logits=True),
        "focal": lambda: losses.BinaryFocalCrossentropy(from_logits=True),
        "hinge": lambda: "hinge",
        "dice": losses.Dice,
        "tversky": losses.Tversky,
    },
    "kinds": {
        "sparse": lambda: losses.SparseCategoricalCrossentropy(from_logits=True),
        "ignoring": lambda: losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
    },
}
METRICS: dict[str, dict[str, Callable[[], Any]]] = {
    "numbers": {
        "mae": metrics.MeanAbsoluteError,
        "rmse": metrics.RootMeanSquaredError,
        "r2": metrics.R2Score,
        "cosine": metrics.CosineSimilarity,
        "rooted": Rooted,
        "pearson": metrics.PearsonCorrelation,
    },
    "yes": {
        "accuracy": lambda: metrics.BinaryAccuracy(threshold=0.0),
        "auc": lambda: metrics.AUC(from_logits=True),
        "precision": lambda: metrics.Precision(thresholds=0.0),
        "f1": lambda: metrics.F1Score(threshold=0.5),
        "rooted": Rooted,
    },
    "kinds": {
        "accuracy": metrics.SparseCategoricalAccuracy,
        "iou": lambda: metrics.MeanIoU(4, sparse_y_pred=False),
    },
}
OPTIMIZERS = (
    "SGD",
    "Adam",
    "AdamW",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Adamax",
    "Nadam",
    "Ftrl",
    "Lion",
    "Lamb",
    "Adafactor",
    "Muon",
    "LossScale",
)
SETTINGS: dict[str, dict[str, Any]] = {
    "clipnorm": {"clipnorm": 0.1},
    "global_clipnorm": {"global_clipnorm": 0.1},
    "clipvalue": {"clipvalue": 0.05},
    "ema": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3},
    "accumulation": {"gradient_accumulation_steps": 2},
    "decay": {"weight_decay": 0.01},
    "schedule": {"learning_rate": None},
}


class Braking(keras.callbacks.Callback):
    """A lower rate after a batch with a large loss."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if logs and logs.get("loss", 0.0) > 0.5:
            rate = self.model.optimizer
            rate = getattr(rate, "inner_optimizer", rate)
            if not callable(rate._learning_rate):
                rate.learning_rate.assign(rate.learning_rate * 0.9)


CALLBACKS: dict[str, Callable[[], keras.callbacks.Callback]] = {
    "plateau": lambda: keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, factor=0.5, min_delta=10.0),
    "stopping": lambda: keras.callbacks.EarlyStopping(monitor="loss", patience=0, min_delta=0.1, restore_best_weights=True),
    "nan": keras.callbacks.TerminateOnNaN,
    "braking": Braking,
    "scheduler": lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8),
}


@keras.saving.register_keras_serializable("oracle")
class Own(keras.Model):
    """A `train_step` as tutorials have it; `kind` says which."""

    def __init__(self, inner: keras.Model, kind: str):
        super().__init__()
        self.inner, self.kind = inner, kind
        self.tracker = keras.metrics.Mean(name="own")
        self.seeds = keras.random.SeedGenerator(7)

    def get_config(self) -> dict[str, Any]:
        return {"inner": keras.saving.serialize_keras_object(self.inner), "kind": self.kind}

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> "Own":
        return cls(keras.saving.deserialize_keras_object(config["inner"]), config["kind"])

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker, *super().metrics]

    def train_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            output = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=output, sample_weight=weights)
            if self.kind == "noise":
                first = tf.nest.flatten(output)[0]
                loss += 0.1 * ops.mean(ops.square(first - keras.random.normal(ops.shape(first), dtype=first.dtype, seed=self.seeds)))
            if self.kind == "penalty":
                sources = [one for one in tf.nest.flatten(x) if one.dtype.is_floating]
                if sources:
                    with tf.GradientTape() as inner:
                        inner.watch(sources)
                        again = tf.add_n([ops.sum(one) for one in tf.nest.flatten(self(x, training=False))])
                    slopes = inner.gradient(again, sources)
                    loss += 0.01 * tf.add_n([ops.mean(ops.square(slope)) for slope in slopes])
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        if self.kind == "clipped":
            gradients, norm = tf.clip_by_global_norm(gradients, 0.1)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.tracker.update_state(loss)
        logs = self.compute_metrics(x, y, output, weights)
        return {**logs, "plain": loss} if self.kind != "clipped" else {**logs, "norm": norm}


STEPS = ("", "", "", "own", "noise", "penalty", "clipped")
STEPS_OF_EPOCH = 8
"""The most that a random program has."""


def made(seed: int) -> Program:
    """A random program."""
    draw = random.Random(seed)

    def some(of: Sequence[str], most: int, least: int = 0) -> tuple[str, ...]:
        return tuple(draw.sample(list(of), draw.randint(least, min(most, len(of)))))

    # Most of a program's time is tracing, by each worker: recurrent layers take several times as long as others, executions of several
    # batches twice as long.
    inputs = tuple(draw.choices(list(INPUTS), (14, 1, 1, 3, 1))[0] for _ in range(draw.choice((1, 1, 1, 1, 1, 1, 2, 2, 3))))
    outputs = tuple(draw.choice(list(OUTPUTS)) for _ in range(draw.choice((1, 1, 1, 1, 1, 1, 2, 2, 3))))
    rows, way = draw.randint(3, 32), draw.choice(("script", "run"))
    # `lockstep.distribute` returns the model of one worker as it is.
    workers = draw.choices((1, 2, 3, 4, 5), (2 if way == "run" else 0, 12, 4, 1, 1))[0]
    return Program(
        seed=seed,
        rows=rows,
        batch=draw.randint(-(-rows // STEPS_OF_EPOCH), min(rows, 16)),
        epochs=draw.choice((1, 2, 2, 3)),
        workers=workers,
        inputs=inputs,
        body=some(list(BODY), 3),
        outputs=outputs,
        loss=tuple(draw.choice(list(LOSSES[kind])) for kind in outputs),
        metric=tuple(draw.choice(["", *METRICS[kind]]) for kind in outputs),
        weights=draw.choice(("", "", "rows", "classes" if outputs == ("kinds",) else "")),
        optimizer=draw.choice(OPTIMIZERS),
        settings=some(list(SETTINGS), 2),
        callbacks=some(list(CALLBACKS), 2),
        step=draw.choice(STEPS),
        per_call=draw.choice((1, 1, 1, 1, 2, 3)),
        validation=draw.choice((0, 0, draw.randint(1, 20))),
        eager=draw.random() < 0.2,
        way=way,
        stop=draw.choice((0, 0, 0, draw.randint(1, 8))) if way == "run" else 0,
        hooks=draw.random() < 0.7,
    )


def data_of(program: Program, rows: int, part: int) -> tuple[Any, ...]:
    """Rows for a program: `(x, y)` or `(x, y, sample_weight)`."""
    numbers = np.random.default_rng((program.seed, part))
    x = {f"in{index}": INPUTS[kind](numbers, rows) for index, kind in enumerate(program.inputs)}
    target = {"numbers": lambda: numbers.normal(size=(rows, 3)), "yes": lambda: numbers.integers(0, 2, (rows, 1)).astype("float64")}
    target["kinds"] = lambda: numbers.integers(0, 4, rows)
    y = {f"out{index}": target[kind]() for index, kind in enumerate(program.outputs)}
    if len(y) == 1:
        (y,) = y.values()
    return (x, y, numbers.uniform(0, 2, rows)) if program.weights == "rows" else (x, y)


def optimizer_of(program: Program) -> Any:
    """The optimizer, with its settings."""
    kind = "Adam" if program.optimizer == "LossScale" else program.optimizer
    settings: dict[str, Any] = {"learning_rate": 0.02}
    for one in program.settings:
        settings |= SETTINGS[one]
    if "schedule" in program.settings:
        settings["learning_rate"] = optimizers.schedules.ExponentialDecay(0.02, 3, 0.7)
    clips = [one for one in ("clipnorm", "global_clipnorm", "clipvalue") if one in settings]
    for one in clips[1:]:
        del settings[one]
    if settings.get("use_ema") and settings.get("gradient_accumulation_steps"):
        del settings["use_ema"], settings["ema_momentum"], settings["ema_overwrite_frequency"]
    inner = getattr(optimizers, kind)(**settings)
    return optimizers.LossScaleOptimizer(inner, initial_scale=1024.0, dynamic_growth_steps=2) if program.optimizer == "LossScale" else inner


def model_of(program: Program) -> keras.Model:
    """The compiled model."""
    keras.utils.set_random_seed(program.seed)
    entries, merged = {}, []
    for index, kind in enumerate(program.inputs):
        example = INPUTS[kind](np.random.default_rng(0), 1)
        entry = keras.Input(example.shape[1:], name=f"in{index}", dtype="int32" if kind == "tokens" else "float64")
        entries[entry.name], x = entry, ENTRIES[kind]()(entry)
        for layer in AFTER[kind]():
            x = layer(x)
        merged.append(x)
    x = layers.Concatenate()(merged) if len(merged) > 1 else merged[0]
    for kind in program.body:
        x = BODY[kind]()(x)
    outputs = {
        f"out{index}": layers.Dense(OUTPUTS[kind], activation="sigmoid" if loss in ("dice", "tversky") else None, name=f"out{index}")(x)
        for index, (kind, loss) in enumerate(zip(program.outputs, program.loss, strict=True))
    }
    loss = {name: LOSSES[kind][one]() for name, kind, one in zip(outputs, program.outputs, program.loss, strict=True)}
    metric = {
        name: [_named(METRICS[kind][one](), one)] if one else []
        for name, kind, one in zip(outputs, program.outputs, program.metric, strict=True)
    }
    weights: Any = {name: 1.0 / (1 + index) for index, name in enumerate(outputs)}
    single = len(outputs) == 1
    if single:
        outputs, loss, metric, weights = (next(iter(each.values())) for each in (outputs, loss, metric, weights))
    model = keras.Model(entries, outputs)
    if program.step:
        model = Own(model, program.step)
        model.build({name: (None, *entry.shape[1:]) for name, entry in entries.items()})
    settings = {"run_eagerly": program.eager, "steps_per_execution": program.per_call, "jit_compile": False}
    model.compile(optimizer_of(program), loss=loss, metrics=metric, loss_weights=None if single else weights, **settings)
    return model


def _named(metric: Any, name: str) -> Any:
    metric.name = name
    return metric


def of(values: dict[str, Any]) -> Program:
    """A program from JSON."""
    return Program(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
