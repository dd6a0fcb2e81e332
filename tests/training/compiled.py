"""Models that a user compiled, their data and callbacks, for `test_compiled.py`: given to `train.yml` as they are."""

import keras
import numpy as np
from keras import layers


def build(width=16, rate=0.01):
    """Two inputs, one number; statistics of the batch, and random numbers."""
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((1,), name="b")}
    x = layers.Dense(width, activation="relu")(layers.Concatenate()([inputs["a"], inputs["b"]]))
    x = layers.Dropout(0.1)(layers.BatchNormalization()(x))
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(rate), loss="mse", metrics=["mae"])
    return model


def data(split):
    """Rows of two inputs, with a weight each."""
    if split == "validation":
        return None
    random = np.random.default_rng(0 if split == "train" else 1)
    count = 500 if split == "train" else 100
    x = {"a": random.normal(size=(count, 4)), "b": random.normal(size=(count, 1))}
    return x, x["a"].sum(axis=1) * x["b"][:, 0], random.uniform(0, 2, count)


def new():
    """Rows without targets, more than one host's block."""
    random = np.random.default_rng(2)
    return {"b": random.normal(size=(600, 1)), "a": random.normal(size=(600, 4))}


def callbacks():
    """Of a module beside this file, which travels with it."""
    from compiled_callbacks import halved

    return halved()


@keras.saving.register_keras_serializable()
class Variational(keras.Model):
    """A variational autoencoder with a `train_step` of its own and noise of its own."""

    def __init__(self, **more):
        super().__init__(**more)
        self.encoder = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="relu"), layers.Dense(4)])
        self.decoder = keras.Sequential([keras.Input((2,)), layers.Dense(8, activation="relu"), layers.Dense(4)])
        self.draws, self.total = keras.random.SeedGenerator(7), keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.total]

    def call(self, x):
        mean, spread = keras.ops.split(self.encoder(x), 2, axis=-1)
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.draws)
        return self.decoder(mean + keras.ops.exp(spread / 2) * noise), mean, spread

    def losses_of(self, x):
        decoded, mean, spread = self(x)
        divergence = keras.ops.mean(keras.ops.sum(mean**2 + keras.ops.exp(spread) - spread - 1, axis=1)) / 2
        return keras.ops.mean(keras.ops.sum((x - decoded) ** 2, axis=1)) + divergence, divergence

    def train_step(self, data):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss, divergence = self.losses_of(data[0])
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True))
        self.total.update_state(loss, sample_weight=keras.ops.shape(data[0])[0])
        return {"loss": self.total.result(), "divergence": divergence}

    def test_step(self, data):
        self.total.update_state(self.losses_of(data[0])[0], sample_weight=keras.ops.shape(data[0])[0])
        return {"loss": self.total.result()}


def variational():
    model = Variational()
    model.compile(keras.optimizers.Adam(0.01))
    return model


def rows(split):
    made = data(split)
    return made and (made[0]["a"],)


def inputs_and_sums(split):
    made = data(split)
    return made and (made[0]["a"], made[1])


def nothing():
    """A loss that returns nothing."""
    model = build()
    model.compile("adam", loss=lambda y, p: None)
    return model


def misfit():
    """A loss that the output does not fit."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True))
    return model


def standardised():
    """A model of numbers, which traces with strings, too, and then fails."""
    inputs = {"size": keras.Input((), name="size")}
    model = keras.Model(inputs, layers.Dense(1)(layers.Reshape((1,))(layers.Normalization(None, 1.0, 4.0)(inputs["size"]))))
    model.compile("adam", "mse")
    return model


def sizes(split):
    """Sizes as text, as a table has them that writes a missing one `?`."""
    return {"size": np.array(["1.5", "?", "2", "3"])}, np.arange(4.0)


def classes():
    """Three outputs, for classes by their number."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Largest(keras.metrics.Metric):
    """A metric that is no sum."""

    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        return self.value


def largest():
    model = build()
    model.compile("adam", "mse", metrics=[Largest()])
    return model


@keras.saving.register_keras_serializable()
class Counter(layers.Layer):
    """Counts the steps of training, as for an annealed loss."""

    def build(self, _):
        self.steps = self.add_weight(name="steps", shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.steps.assign_add(1)
        return x


def averaged():
    """Its gradients are scaled, its weights averaged, and it counts."""
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((1,), name="b")}
    x = Counter(name="counter")(layers.Concatenate()([inputs["a"], inputs["b"]]))
    model = keras.Model(inputs, layers.Dense(1)(x))
    inner = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.9)
    model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0), loss="mse")
    return model


def unreduced():
    model = build()
    model.compile("sgd", loss=keras.losses.MeanSquaredError(reduction=None))
    return model


@keras.saving.register_keras_serializable()
class Precision(keras.metrics.Metric):
    """Of what is called a hit, how much is one: 0/0 here, where nothing is."""

    def __init__(self, name="precision", **more):
        super().__init__(name=name, **more)
        self.hits, self.called = (self.add_weight(name=name, initializer="zeros") for name in ("hits", "called"))

    def update_state(self, y, predicted, sample_weight=None):
        called = keras.ops.cast(predicted[:, 0] > 1e9, "float32")
        self.called.assign_add(keras.ops.sum(called))
        self.hits.assign_add(keras.ops.sum(called * keras.ops.cast(y > 0, "float32")))

    def result(self):
        return self.hits / self.called


def precise():
    model = build()
    model.compile("sgd", loss="mse", metrics=[Precision()])
    return model


class Unknown(layers.Layer):
    """A layer that no snapshot could name."""

    def call(self, x):
        return 2 * x


def unknown():
    model = keras.Sequential([keras.Input((4,)), Unknown(), layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def uncompiled():
    return keras.Sequential([keras.Input((4,)), layers.Dense(1)])


def missing(split):
    made = data(split)
    if made:
        made[1][3] = np.nan
    return made


def another_class(split):
    """Class 3 where the model has 0 to 2, once, late in the test examples."""
    made = data(split)
    return made and (made[0]["a"], np.where(np.arange(len(made[1])) == 99, 3 if split == "test" else 2, 1))


def nobody(split):
    return iter(())


def another_shape(split):
    yield np.zeros((4, 4)), np.zeros(4)
    yield np.zeros((4, 5)), np.zeros(4)


def ends_early(split):
    yield np.zeros((4, 4)), np.zeros(4)
    raise RuntimeError("the connection is gone")
