"""What random programs are made of: inputs, layers, losses, metrics, optimizers, callbacks and steps."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, losses, metrics, ops, optimizers, regularizers

INPUTS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "numbers": lambda numbers, rows: numbers.normal(size=(rows, 5)),
    "tokens": lambda numbers, rows: np.where(numbers.random((rows, 6)) < 0.7, numbers.integers(1, 12, (rows, 6)), 0),
    "series": lambda numbers, rows: numbers.normal(size=(rows, 5, 3)),
    "image": lambda numbers, rows: numbers.normal(size=(rows, 6, 6, 2)),
    "picture": lambda numbers, rows: numbers.integers(0, 256, (rows, 8, 8, 3)),
    "words": lambda numbers, rows: np.where(numbers.random((rows, 6)) < 0.8, numbers.integers(1, 12, (rows, 6)), 0),
    "signal": lambda numbers, rows: numbers.normal(size=(rows, 8, 2)),
    "counts": lambda numbers, rows: np.where(numbers.random((rows, 7)) < 0.3, numbers.integers(1, 4, (rows, 7)), 0).astype("float64"),
}
SPARSE = ("counts",)
"""Inputs that are sparse in a script."""
ENTRIES: dict[str, Callable[[], keras.Layer]] = {
    "numbers": lambda: layers.Dense(6, activation="tanh"),
    "tokens": lambda: layers.Embedding(12, 4, mask_zero=True),
    "series": lambda: layers.Masking(0.0),
    "image": lambda: layers.Conv2D(3, 3, activation="relu"),
    "picture": layers.Identity,
    "words": lambda: layers.Embedding(12, 4, mask_zero=True),
    "signal": lambda: layers.Conv1D(4, 3, activation="tanh", kernel_regularizer="l1"),
    "counts": lambda: layers.Dense(4, activation="tanh"),
}
AFTER: dict[str, Callable[[], list[keras.Layer]]] = {
    "numbers": list,
    "counts": list,
    "tokens": lambda: [layers.LSTM(5, dropout=0.2)],
    "series": lambda: [layers.GRU(4, recurrent_dropout=0.1)],
    "picture": lambda: [layers.Rescaling(1 / 255), layers.SeparableConv2D(3, 3, activation="relu"), layers.GlobalAveragePooling2D()],
    "words": lambda: [Placing(), Attending(), layers.GlobalAveragePooling1D()],
    "signal": lambda: [layers.BatchNormalization(), layers.TimeDistributed(layers.Dense(3)), layers.GlobalMaxPooling1D()],
    "image": lambda: [layers.BatchNormalization(), layers.SpatialDropout2D(0.2), layers.GlobalAveragePooling2D()],
}


AUGMENT: dict[str, Callable[[], keras.Layer]] = {
    "mix_up": lambda: layers.MixUp(seed=3),
    "cut_mix": lambda: layers.CutMix(seed=3),
    "flip": lambda: layers.RandomFlip(seed=4),
    "brightness": lambda: layers.RandomBrightness(0.2, seed=5),
    "posterization": lambda: layers.RandomPosterization(4, seed=6),
    "rotation": lambda: layers.RandomRotation(0.2, seed=7),
    "zoom": lambda: layers.RandomZoom(0.3, seed=8),
    "translation": lambda: layers.RandomTranslation(0.2, 0.2, seed=9),
    "contrast": lambda: layers.RandomContrast(0.4, seed=10),
    "crop": lambda: layers.RandomCrop(6, 6, seed=11),
    "erasing": lambda: layers.RandomErasing(seed=12),
    "jitter": lambda: layers.RandomColorJitter(brightness_factor=0.2, seed=13),
    "grayscale": lambda: layers.RandomGrayscale(0.5, seed=14),
    "shear": lambda: layers.RandomShear(0.2, 0.2, seed=15),
    "invert": lambda: layers.RandomInvert(0.5, seed=16),
    "hue": lambda: layers.RandomHue(0.2, seed=17),
    "blur": lambda: layers.RandomGaussianBlur(seed=18),
    "perspective": lambda: layers.RandomPerspective(seed=19),
    "solarization": lambda: layers.Solarization(seed=20),
    "elastic": lambda: layers.RandomElasticTransform(seed=21),
}
"""Of pictures."""


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


@keras.saving.register_keras_serializable("oracle")
class Attending(layers.Layer):
    """Words attend to each other, where there are any."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.supports_masking = True
        self.attention = layers.MultiHeadAttention(2, 3, dropout=0.1, seed=6)

    def build(self, shape: Any) -> None:
        self.attention.build(shape, shape)

    def call(self, x: Any, mask: Any = None, training: bool = False) -> Any:
        return x + self.attention(x, x, query_mask=mask, value_mask=mask, key_mask=mask, training=training)


@keras.saving.register_keras_serializable("oracle")
class Placing(layers.Layer):
    """Adds what is learned of each place, which all rows look up alike."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.supports_masking = True
        self.places = layers.Embedding(6, 4)

    def build(self, shape: Any) -> None:
        self.places.build((None,))

    def call(self, x: Any) -> Any:
        return x + self.places(ops.arange(ops.shape(x)[1]))


@keras.saving.register_keras_serializable("oracle")
class Gated(layers.Layer):
    """Mixes rows behind a gate that is closed at first."""

    def build(self, shape: Any) -> None:
        self.gate = self.add_weight(shape=(), initializer="zeros")

    def call(self, x: Any) -> Any:
        return x + self.gate * ops.mean(ops.square(x), axis=0, keepdims=True)


@keras.saving.register_keras_serializable("oracle")
class Sometimes(layers.Layer):
    """Mixes rows now and then."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.seed_generator = keras.random.SeedGenerator(11)

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        drawn = keras.random.uniform((), dtype=x.dtype, seed=self.seed_generator)
        return ops.where(drawn < 0.4, 0.5 * (x + ops.flip(x, axis=0)), x)


@keras.saving.register_keras_serializable("oracle")
class Again(layers.Layer):
    """Is computed again for its gradient."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.dense = layers.Dense(6, activation="tanh")

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    def call(self, x: Any) -> Any:
        return tf.recompute_grad(self._dense)(x)

    def _dense(self, x: Any) -> Any:
        return self.dense(x)


@keras.saving.register_keras_serializable("oracle")
class Function(layers.Layer):
    """Is traced on its own."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.norm, self.drop = layers.BatchNormalization(), layers.Dropout(0.2, seed=12)

    def build(self, shape: Any) -> None:
        self.norm.build(shape)

    @tf.function
    def call(self, x: Any, training: bool = False) -> Any:
        return self.drop(self.norm(x, training=training), training=training)


def common(x: Any) -> Any:
    """An activation that depends on the batch, where its numbers are large."""
    return ops.tanh(x - 0.5 * ops.relu(ops.mean(x, axis=0) - 0.5))


@keras.saving.register_keras_serializable("oracle")
class Comparing(layers.Layer):
    """Each row attends to all of its batch, as far as it is like them."""

    def call(self, x: Any) -> Any:
        return x + ops.matmul(ops.softmax(ops.matmul(x, ops.transpose(x))), x)


@keras.saving.register_keras_serializable("oracle")
class Ranking(layers.Layer):
    """How far a row's first number is from the largest of its batch."""

    def call(self, x: Any) -> Any:
        return x + ops.sigmoid(ops.max(x[:, :1], axis=0) - x[:, :1])


@keras.saving.register_keras_serializable("oracle")
class Measuring(layers.Layer):
    """Keeps a metric of its own."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.size = metrics.Sum(name="size")

    def call(self, x: Any) -> Any:
        self.size.update_state(ops.mean(ops.abs(x), axis=-1))
        return x


@keras.saving.register_keras_serializable("oracle")
class Twice(layers.Layer):
    """Uses the same layers twice."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.norm, self.drop, self.dense = layers.BatchNormalization(), layers.Dropout(0.2, seed=9), layers.Dense(5, use_bias=False)

    def build(self, shape: Any) -> None:
        self.norm.build(shape)
        self.dense.build(shape)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(self.drop(self.norm(x, training=training), training=training) + self.norm(-x, training=training))


def nested() -> keras.Layer:
    """A model as a layer."""
    return keras.Sequential([layers.Dense(6), layers.BatchNormalization(), layers.Activation("gelu"), layers.Dropout(0.2, seed=8)])


@keras.saving.register_keras_serializable("oracle")
class Latent(layers.Layer):
    """Draws around what it is given, and is penalised for where that is, as in a variational autoencoder."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.seed_generator = keras.random.SeedGenerator(5)
        self.both = layers.Dense(8)

    def build(self, shape: Any) -> None:
        self.both.build(shape)

    def call(self, x: Any) -> Any:
        mean, spread = ops.split(self.both(x), 2, axis=-1)
        self.add_loss(-0.05 * ops.mean(ops.sum(1 + spread - ops.square(mean) - ops.exp(spread), axis=-1)))
        return mean + ops.exp(spread / 2) * keras.random.normal(ops.shape(mean), dtype=mean.dtype, seed=self.seed_generator)


@keras.saving.register_keras_serializable("oracle")
class Connecting(keras.Layer):
    """Drops weights, not outputs; their first dimension may be as large as a batch (Wan et al. 2013, DropConnect)."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.seed_generator = keras.random.SeedGenerator(9)

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 5))

    def call(self, x: Any, training: bool = False) -> Any:
        drawn = keras.random.uniform(self.kernel.shape, dtype=self.kernel.dtype, seed=self.seed_generator)
        return ops.matmul(x, self.kernel * ops.cast(drawn < 0.7, self.kernel.dtype) if training else self.kernel)


@keras.saving.register_keras_serializable("oracle")
class Growing(keras.Layer):
    """Counts its steps in a variable that Keras does not know."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.steps = tf.Variable(0.0, trainable=False, dtype="float64")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign_add(1.0)
        return x * (1 + 0.1 * ops.cast(self.steps, x.dtype))


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
    "comparing": Comparing,
    "ranking": Ranking,
    "measuring": Measuring,
    "latent": Latent,
    "twice": Twice,
    "gated": Gated,
    "sometimes": Sometimes,
    "again": Again,
    "function": Function,
    "common": lambda: layers.Dense(6, activation=common),
    "loud": lambda: layers.Rescaling(40.0),
    "connecting": Connecting,
    "growing": Growing,
    "nested": nested,
    "centred": lambda: layers.Lambda(lambda x: x - ops.mean(x, axis=0)),
    "cast": lambda: layers.Lambda(lambda x: ops.log(1 + ops.abs(x))),
    "frozen": lambda: layers.BatchNormalization(trainable=False),
    "synchronized": lambda: layers.BatchNormalization(synchronized=True, momentum=0.5),
    "frozen_dense": lambda: layers.Dense(6, trainable=False),
    "gaussian_dropout": lambda: layers.GaussianDropout(0.2, seed=2),
    "rms_norm": layers.RMSNormalization,
    "maximum": lambda: layers.Dense(5, activation="softmax", bias_constraint="non_neg"),
}


def contrasting(y: Any, output: Any) -> Any:
    """Each row against all others of its batch."""
    near = ops.matmul(ops.normalize(output, axis=-1), ops.transpose(ops.normalize(y, axis=-1))) * 3
    return ops.mean(ops.logsumexp(near, axis=-1) - ops.diagonal(near))


def root(y: Any, output: Any) -> Any:
    """A root over the whole batch."""
    return ops.sqrt(ops.mean(ops.square(y - output)) + 1e-3)


def by_rows(y: Any, output: Any) -> Any:
    """A sum over a row."""
    return ops.sum(ops.abs(y - output) ** 1.5, axis=-1)


class Weighing(losses.Loss):
    """Rows count by how far they are off, compared with the others."""

    def call(self, y: Any, output: Any) -> Any:
        off = ops.mean(ops.square(y - output), axis=-1)
        return off * ops.softmax(ops.stop_gradient(off), axis=0)


def spread(y: Any, output: Any) -> Any:
    """Whether outputs vary as they should."""
    return ops.std(y - output, axis=0)


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


OUTPUTS = {"numbers": 3, "yes": 1, "kinds": 4, "shares": 4}
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
        "by_rows": lambda: by_rows,
        "weighing": Weighing,
        "weighing_sum": lambda: Weighing(reduction="sum"),
        "spread": lambda: spread,
        "msle": lambda: "mean_squared_logarithmic_error",
        "quantile": lambda: lambda y, output: ops.maximum(0.9 * (y - output), 0.1 * (output - y)),
    },
    "yes": {
        "crossentropy": lambda: losses.BinaryCrossentropy(from_logits=True),
        "focal": lambda: losses.BinaryFocalCrossentropy(from_logits=True),
        "hinge": lambda: "hinge",
        "probable": losses.BinaryCrossentropy,
        "dice": losses.Dice,
        "tversky": losses.Tversky,
    },
    "kinds": {
        "sparse": lambda: losses.SparseCategoricalCrossentropy(from_logits=True),
        "ignoring": lambda: losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
        "probable": losses.SparseCategoricalCrossentropy,
        "generalized": losses.CategoricalGeneralizedCrossEntropy,
        "circle": lambda: losses.Circle(gamma=4.0),
    },
    "shares": {
        "crossentropy": lambda: losses.CategoricalCrossentropy(label_smoothing=0.1),
        "focal": losses.CategoricalFocalCrossentropy,
        "divergence": lambda: "kl_divergence",
        "poisson": lambda: "poisson",
        "axis": lambda: losses.Dice(axis=(1,)),
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
        "concordance": metrics.ConcordanceCorrelation,
        "spread": lambda: metrics.MeanMetricWrapper(spread),
    },
    "yes": {
        "accuracy": lambda: metrics.BinaryAccuracy(threshold=0.0),
        "auc": lambda: metrics.AUC(from_logits=True),
        "precision": lambda: metrics.Precision(thresholds=0.0),
        "f1": lambda: metrics.F1Score(threshold=0.5),
        "sensitivity": lambda: metrics.SensitivityAtSpecificity(0.6, num_thresholds=20),
        "rooted": Rooted,
    },
    "kinds": {
        "accuracy": metrics.SparseCategoricalAccuracy,
        "iou": lambda: metrics.MeanIoU(4, sparse_y_pred=False),
    },
    "shares": {
        "accuracy": metrics.CategoricalAccuracy,
        "fbeta": lambda: metrics.FBetaScore(average="macro"),
        "iou": lambda: metrics.OneHotMeanIoU(4),
        "recall": lambda: metrics.Recall(top_k=2),
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
    "ScheduleFreeAdamW",
    "Multi",
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


class Halting(keras.callbacks.Callback):
    """Stops inside the second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = self.model.stop_training or (self.epoch == 1 and batch >= 1)


class Shrinking(keras.callbacks.Callback):
    """Assigns a weight."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        variable = self.model.trainable_variables[0]
        variable.assign(variable * 0.9)


class Noting(keras.callbacks.Callback):
    """Adds to the logs what others and the history see."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["norm"] = float(sum(np.sum(np.square(one)) for one in self.model.get_weights()))


CALLBACKS: dict[str, Callable[[], keras.callbacks.Callback]] = {
    "plateau": lambda: keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, factor=0.5, min_delta=10.0),
    "stopping": lambda: keras.callbacks.EarlyStopping(monitor="loss", patience=0, min_delta=0.1, restore_best_weights=True),
    "nan": keras.callbacks.TerminateOnNaN,
    "braking": Braking,
    "halting": Halting,
    "shrinking": Shrinking,
    "noting": Noting,
    "restoring": lambda: keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, restore_best_weights=True, start_from_epoch=1),
    "swapping": lambda: keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
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
        output = self.inner(x, training=training)
        if self.kind == "keeping":
            self.kept = ops.square(tf.nest.flatten(output)[0])
        return output

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
            if self.kind == "pairs":
                first = tf.nest.flatten(output)[0]
                loss += 0.1 * ops.mean(ops.square(first - ops.roll(first, 1, axis=0)))
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
        if self.kind == "sharpness":
            gradients = self._uphill(x, y, weights, gradients)
        if self.kind == "clipped":
            gradients, norm = tf.clip_by_global_norm(gradients, 0.1)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        if self.kind == "teacher":
            for mean, variable in zip(self.means, variables, strict=True):
                mean.assign(0.9 * mean + 0.1 * variable)
        if self.kind == "guide":
            return self._each(y, output, loss)
        self.tracker.update_state(loss)
        logs = self.compute_metrics(x, y, output, weights)
        return {**logs, "plain": loss} if self.kind != "clipped" else {**logs, "norm": norm}

    def _each(self, y: Any, output: Any, loss: Any) -> dict[str, Any]:
        """Metrics one by one, as in a guide of Keras': those of `compile` are one."""
        for metric in self.metrics:
            metric.update_state(*([loss] if isinstance(metric, keras.metrics.Mean) else [y, output]))
        return {metric.name: metric.result() for metric in self.metrics}

    def build(self, shape: Any) -> None:
        if self.kind == "teacher":
            self.means = [
                self.add_weight(shape=one.shape, trainable=False, initializer="zeros", name=f"mean{index}")
                for index, one in enumerate(self.inner.trainable_variables)
            ]
        self.built = True

    def _uphill(self, x: Any, y: Any, weights: Any, gradients: Any) -> Any:
        """Gradients a little further up (Foret et al. 2021, arXiv:2010.01412)."""
        variables, norm = self.trainable_variables, tf.linalg.global_norm(gradients) + 1e-12
        moves = [0.05 * one / norm for one in gradients]
        for variable, move in zip(variables, moves, strict=True):
            variable.assign_add(move)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True), sample_weight=weights)
        there = tape.gradient(loss, variables)
        for variable, move in zip(variables, moves, strict=True):
            variable.assign_sub(move)
        return there


@keras.saving.register_keras_serializable("oracle")
class Judging(Own):
    """A loss, a step of evaluation and metrics of its own."""

    train_step = keras.Model.train_step
    metrics = keras.Model.metrics

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if self.kind == "keeping":
            return loss + 0.1 * ops.sqrt(ops.mean(self.kept) + 1e-3)
        return loss + 0.1 * ops.std(tf.nest.flatten(y_pred)[0]) if self.kind == "judging" else loss

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**found, "double": 2 * found["loss"]} if self.kind == "reporting" else found

    def test_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        output = self(x, training=False)
        loss = self.compute_loss(x=x, y=y, y_pred=output, sample_weight=weights, training=False)
        self._loss_tracker.update_state(loss * 2, sample_weight=ops.shape(tf.nest.flatten(x)[0])[0])
        return self.compute_metrics(x, y, output, weights)


@keras.saving.register_keras_serializable("oracle")
class Rivals(Own):
    """Two optimizers, one after the other, as in a GAN; or one that is given the gradients of several batches."""

    def build(self, shape: Any) -> None:
        if self.kind == "saving_up":
            self.kept = [
                self.add_weight(shape=one.shape, trainable=False, initializer="zeros", name=f"kept{index}")
                for index, one in enumerate(self.inner.trainable_variables)
            ]
        self.other = optimizers.Adam(0.01)
        self.built = True

    def train_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        variables = self.inner.trainable_variables
        if self.kind == "saving_up":
            for kept, gradient in zip(self.kept, self._slopes(x, y, weights, variables), strict=True):
                kept.assign(0.5 * kept + gradient)
            self.optimizer.apply_gradients(zip([one.value for one in self.kept], variables, strict=True))
        else:
            for optimizer, some in ((self.other, variables[:1]), (self.optimizer, variables[1:])):
                optimizer.apply_gradients(zip(self._slopes(x, y, weights, some), some, strict=True))
        output = self(x, training=False)
        self.tracker.update_state(self.compute_loss(x=x, y=y, y_pred=output, sample_weight=weights))
        return self.compute_metrics(x, y, output, weights)

    def _slopes(self, x: Any, y: Any, weights: Any, variables: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True), sample_weight=weights)
        return tape.gradient(loss, variables)


@keras.saving.register_keras_serializable("oracle")
class Bare(Own):
    """Steps that return numbers of a batch, and keep no metrics."""

    @property
    def metrics(self) -> list[Any]:
        return []

    def train_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True), sample_weight=weights)
        variables = self.inner.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return self._told(loss)

    def test_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        return self._told(self.compute_loss(x=x, y=y, y_pred=self(x, training=False), sample_weight=weights, training=False))

    def _told(self, loss: Any) -> dict[str, Any]:
        return {"loss": loss, "root": ops.sqrt(loss)} if self.kind == "telling" else {"loss": loss}


MODELS: dict[str, type[Own]] = {
    "judging": Judging,
    "reporting": Judging,
    "keeping": Judging,
    "evaluating": Judging,
    "two": Rivals,
    "saving_up": Rivals,
    "bare": Bare,
    "telling": Bare,
}
"""Of some steps; the others are those of `Own`."""
