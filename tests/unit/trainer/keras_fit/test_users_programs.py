"""Programs as users write them, trained by `fit` alone and by `lockstep.distribute` on two workers, which are threads."""

import json
import re

import pytest

from tests.unit import forked

PROGRAM = """
import contextlib
import io
import json
import keras
import numpy as np
import sys
import tensorflow as tf
from keras import layers, ops
from trainer.keras_fit import distribute
from trainer.keras_step import rehearsal
from trainer.network.member import Member

keras.config.set_floatx("float64")
X = np.random.default_rng(0).normal(size=(22, 5))
Y = X[:, :3] ** 2
FOLDER = sys.argv[-1]

def fitted(model, x=X, y=Y, batch=8, **more):
    model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0, **more)
    return np.concatenate([np.ravel(one.numpy()) for one in model.trainable_variables])

def apart(build, *data, fit=fitted):
    keras.utils.set_random_seed(1)
    alone, threads = fit(build(), *data), rehearsal.Threads(2)
    keras.utils.set_random_seed(1)
    models, hosts = [build(), build()], ["127.0.0.1:0", "127.0.0.1:1"]
    models[1].set_weights(models[0].get_weights()) if models[0].built else None
    def work(member):
        return fit(distribute.distribute(models[member.rank], distribute.Peers(Member(member.rank, hosts), member)), *data)
    return max(float(np.max(np.abs(alone - one))) for one in threads.run(work))

def few(*more):
    return keras.Sequential([keras.Input((5,)), *more])

def net(*more):
    return few(layers.Dense(6, activation="tanh"), *more, layers.Dense(3))

def root(y, found):
    return ops.sqrt(ops.mean((y - found) ** 2))

def largest(y, found):
    return ops.max(found)

def compiled(model, loss="mse", optimizer=None, **more):
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss, **more)
    return model

class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = net()
        self.built = True
    def call(self, x, training=False):
        return self.net(x)
    def update(self, loss, tape):
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"loss": loss}

class Critic(Own):
    calls = 0
    def train_step(self, data):
        self.calls += 1
        with tf.GradientTape() as tape:
            loss = ops.mean((self(data[0]) - data[1]) ** 2)
        return self.update(loss, tape) if self.calls % 3 == 0 else {"loss": loss}

class Mixup(Own):
    def __init__(self):
        super().__init__()
        self.rng, self.drawn = np.random.default_rng(3), []
    def train_step(self, data):
        share = float(self.rng.uniform())
        self.drawn.append(share)
        with tf.GradientTape() as tape:
            loss = ops.mean((self(share * data[0]) - data[1]) ** 2) * len(self.drawn)
        return self.update(loss, tape)

class FirstOnly(layers.Layer):
    done = False
    def build(self, shape):
        self.g = self.add_weight(shape=(), initializer="ones", trainable=False)
    def call(self, x, training=False):
        if training and not self.done:
            self.g.assign(1 / ops.std(x))
            self.done = True
        return x * self.g

class Building(layers.Layer):
    def __init__(self):
        super().__init__()
        self.blocks, self.calls = [], 0
    def build(self, shape):
        self.blocks.append(layers.Dense(5, kernel_initializer=keras.initializers.GlorotUniform(2)))
        self.blocks[0].build(shape)
        self.calls += 1
    def call(self, x):
        return self.blocks[0](x) * self.calls

class Box:
    def __init__(self, value):
        self.value = value

class Boxing(layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = net()
        self.built = True
    def call(self, x):
        return Box(self.inner(x))

class Boxed(Own):
    def __init__(self):
        super().__init__()
        self.boxing = Boxing()
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = ops.sqrt(ops.mean((self.boxing(data[0]).value - 1.0) ** 2))
        gradients = tape.gradient(loss, self.boxing.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.boxing.trainable_variables))
        return {"loss": loss}

class Similar(layers.Layer):
    def call(self, both):
        return ops.matmul(both[0], ops.transpose(both[1]))

class Queue(Own):
    def __init__(self):
        super().__init__()
        self.similar, self.queue = Similar(), tf.constant(np.random.default_rng(2).normal(size=(64, 3)))
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.logsumexp(self.similar([self(data[0]), self.queue]), -1))
        return self.update(loss, tape)

class Nodes(keras.Model):
    def __init__(self):
        super().__init__()
        self.x = ops.convert_to_tensor(np.random.default_rng(5).normal(size=(36, 5)) * np.linspace(1, 9, 36)[:, None])
        self.first, self.normal, self.last = layers.Dense(6), layers.BatchNormalization(), layers.Dense(3)
        self.first.build((36, 5)), self.normal.build((36, 6)), self.last.build((36, 6))
        self.built = True
    def call(self, index, training=False):
        nodes = ops.tanh(self.normal(self.first(self.x), training=training))
        return self.last(ops.take(nodes, ops.reshape(ops.cast(index, "int32"), (-1,)), axis=0))

class Halves(layers.Layer):
    def call(self, x):
        first, second = ops.split(x, 2, axis=0)
        return ops.concatenate([first - second, second - first], 0)

class Graph(layers.Layer):
    def call(self, nodes, edges):
        return ops.matmul(edges, nodes)

def graph():
    x, edges = keras.Input((5,)), keras.Input((12,))
    return keras.Model([x, edges], layers.Dense(3)(Graph()(layers.Dense(6, activation="tanh")(x), edges)))

class Given(layers.Layer):
    def call(self, x, more=None):
        return x if more is None else x + more

def optional():
    x, more = keras.Input((5,)), keras.Input((5,), optional=True)
    return compiled(keras.Model([more, x], layers.Dense(3)(Given()(x, more))))

class Traced(Own):
    @tf.function
    def train_step(self, data):
        with tf.GradientTape() as tape:
            output = self(data[0])
            loss = self.compute_loss(y=data[1], y_pred=output)
        self.update(loss, tape)
        return self.compute_metrics(data[0], data[1], output)

class Strings(Own):
    def __init__(self):
        super().__init__()
        self.lookup = layers.StringLookup(vocabulary=["a", "b"], invert=True)
    def train_step(self, data):
        names = self.lookup(tf.cast(data[0][:, 0] > 0, tf.int64) + 1)
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.cast(names == "a", "float64")[:, None] * (self(data[0]) - data[1]) ** 2)
        return self.update(loss, tape)

class Penalized(layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * ops.sum(ops.abs(x)))
        return x

class Cut(layers.Layer):
    def call(self, x, lengths):
        return ops.mean(x[:, : tf.reduce_max(lengths)], axis=1)

def cut():
    x, lengths = keras.Input((6, 4)), keras.Input((), dtype="int32")
    return compiled(keras.Model([x, lengths], layers.Dense(3)(Cut()(x, lengths))))

class Words(layers.Layer):
    def __init__(self):
        super().__init__()
        self.embed = layers.Embedding(50, 4)
        self.embed.build((None, None))
    def call(self, x):
        words = tf.strings.split(tf.reshape(x, [-1])).to_tensor()
        return ops.mean(self.embed(tf.strings.to_hash_bucket_fast(words, 50)), axis=1)

def reading(*more):
    return compiled(keras.Sequential([keras.Input((1,), dtype="string"), *more, layers.Dense(3)]))

def vectorized():
    words = layers.TextVectorization(vocabulary=list("abcdefg"))
    return reading(words, layers.Embedding(12, 4), layers.GlobalAveragePooling1D())

class Strongest(layers.Layer):
    def call(self, x):
        strength = ops.sum(x**2, axis=-1)
        least = tf.math.top_k(strength, tf.minimum(tf.shape(x)[0], 5)).values[-1]
        return ops.where(strength[:, None] >= least, x, 0.0 * x)

class Fitting(Own):
    def fit(self, *given, **named):
        return super().fit(*given, **named)

def begun_apart(model):
    distributed = distribute.of(model)
    if distributed is not None and not distributed.chief:
        model.set_weights([2 * weight for weight in model.get_weights()])
    return fitted(model)

class Again(layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(7, activation="tanh")
        self.inner.build((None, 6))
    def call(self, x):
        return tf.recompute_grad(lambda z: self.inner(z))(x)

class Unique(layers.Layer):
    def __init__(self):
        super().__init__()
        self.embed = layers.Embedding(6, 4)
        self.embed.build((None,))
    def call(self, x):
        found, places = tf.unique(tf.reshape(x, [-1]))
        return ops.mean(tf.gather(self.embed(found), tf.reshape(places, tf.shape(x))), axis=1)

def unique():
    inputs = keras.Input((8,), dtype="int32")
    return compiled(keras.Model(inputs, layers.Dense(3)(Unique()(inputs))), optimizer="adam")

class Padded(Unique):
    def call(self, x):
        found, places = tf.unique(tf.reshape(x, [-1]))
        table = self.embed(tf.concat([found, [0, 0]], 0))
        return ops.mean(tf.gather(table, tf.reshape(places, tf.shape(x))), axis=1) + ops.mean(table[-2:])

def padded():
    inputs = keras.Input((8,), dtype="int32")
    return compiled(keras.Model(inputs, layers.Dense(3)(Padded()(inputs))), optimizer="adam")

class Probable(layers.Layer):
    def call(self, x):
        return tf.nn.softmax(x)

class Nested(Again):
    def call(self, x):
        return tf.recompute_grad(lambda z: tf.recompute_grad(lambda one: self.inner(one))(z) * 2)(x)

class Jitted(Own):
    @tf.function(jit_compile=True)
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = ops.mean((self(data[0]) - data[1]) ** 2)
        return self.update(loss, tape)

class Function(layers.Layer):
    def __init__(self):
        super().__init__()
        self.dropout = layers.Dropout(0.3, seed=4)
    @tf.function
    def call(self, x, training=False):
        return self.dropout(ops.tanh(x), training=training)

def twice(model):
    fitted(model)
    return fitted(compiled(model))

class Halving(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        distributed = distribute.of(self.model)
        if distributed is None or distributed.chief:
            self.model.optimizer.learning_rate = self.model.optimizer.learning_rate * 0.5

class Evaluating(keras.callbacks.ModelCheckpoint):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = self.model.evaluate(X, Y, verbose=0) < 1.0 or batch == 1

class Rating:
    def on_epoch_end(self, epoch, logs=None):
        logs["rate"] = 1.0 / (1 + abs(epoch - 1))
        super().on_epoch_end(epoch, logs)

class Logging(Rating, keras.callbacks.CSVLogger):
    pass

class Drawing(Rating, keras.callbacks.TensorBoard):
    pass

def logged(model, writer, name):
    stopping = keras.callbacks.EarlyStopping(monitor="rate", mode="max", patience=1, restore_best_weights=True)
    return fitted(model, callbacks=[writer(f"{FOLDER}/{name}"), stopping])

class Positions(layers.Layer):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = layers.Embedding(6, 4), layers.Embedding(8, 4)
    def build(self, shape):
        self.tokens.build(shape)
        self.positions.build(shape)
    def call(self, x):
        return ops.tanh(self.tokens(x) + self.positions(ops.arange(0, ops.shape(x)[-1])) + self.tokens(ops.arange(0, 4)[:, None] + 1)[:1])

def text(loss="mse", eager=False):
    tokens = keras.Input((8,), dtype="int32")
    model = keras.Model(tokens, layers.Dense(3)(layers.GlobalAveragePooling1D()(Positions()(tokens))))
    return compiled(model, loss, "adam", run_eagerly=eager)

class Head(Own):
    def train_step(self, data):
        head = self.net.layers[-1].trainable_variables
        if not self.optimizer.built:
            self.optimizer.build(head)
        with tf.GradientTape() as tape:
            loss = ops.mean((self(data[0]) - data[1]) ** 2)
        self.optimizer.apply(tape.gradient(loss, head))
        return {"loss": loss}

class Masking(layers.Layer):
    def call(self, x):
        return 1.0 * x
    def compute_mask(self, x, mask=None):
        return ops.sum(x**2, -1) <= ops.mean(ops.sum(x**2, -1))

class Sometimes(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(11)
    def call(self, x, training=False):
        return ops.where(keras.random.uniform((), seed=self.seed, dtype=x.dtype) < 0.4, 0.5 * (x + ops.flip(x, axis=0)), x)

class Center(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.center = keras.Variable(np.zeros(9000))
    def call(self, y, found):
        loss = ops.mean((found - self.center - y[:, :1]) ** 2, -1)
        self.center.assign(0.9 * self.center + 0.1 * ops.mean(found, 0))
        return loss

class Graphed(Own):
    def train_step(self, data):
        loss = ops.mean((self(data[0]) - data[1]) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tf.gradients(loss, [one.value for one in variables]), variables))
        return {"loss": loss}

def activation(x):
    return ops.tanh(x - 0.5 * ops.relu(ops.mean(x, axis=0) - 2.0))

def listed(model):
    return fitted(model, callbacks=keras.callbacks.CallbackList([], add_history=True, model=model))

messages = io.StringIO()
tokens = np.random.default_rng(1).integers(0, 6, (22, 8))
texts = tf.constant([[" ".join("abcdefg"[: 1 + 2 * row % 7])] for row in range(22)])
with contextlib.redirect_stderr(messages):
    halving = apart(lambda: compiled(net()), fit=lambda model: fitted(model, callbacks=[Halving()]))
index, edges = np.random.default_rng(1).integers(0, 36, (40, 1)), np.random.default_rng(1).random((12, 12)) / 12
print(json.dumps({
    "a count of its steps, eager": apart(lambda: compiled(Critic(), run_eagerly=True)),
    "a generator and a list, eager": apart(lambda: compiled(Mixup(), run_eagerly=True)),
    "something at the first call only, eager": apart(lambda: compiled(net(FirstOnly()), run_eagerly=True)),
    "layers that are made when it is built": apart(
        lambda: compiled(keras.Sequential([Building(), layers.Dense(3, kernel_initializer="ones")]))
    ),
    "an object that a layer returns": apart(lambda: compiled(Boxed())),
    "a queue of a multiple of the rows": apart(lambda: compiled(Queue()), X[:16], Y[:16]),
    "statistics of nodes, not of rows": apart(lambda: compiled(Nodes()), index, np.sin(np.arange(120.0)).reshape(40, 3), 10),
    "halves of a batch": apart(lambda: compiled(net(Halves())), X[:16], Y[:16]),
    "rows with each other by an input": apart(lambda: compiled(graph()), [X[:12], edges], Y[:12], 12),
    "a step that is traced on its own": apart(lambda: compiled(Traced(), metrics=["mae"])),
    "a layer that returns strings": apart(lambda: compiled(Strings())),
    "noise of one number for all rows": apart(lambda: compiled(net(layers.Dropout(0.5, noise_shape=(1, 6), seed=3))), X[:20], Y[:20], 2),
    "an input that is not given": apart(optional, [None, X]),
    "a callback that acts on the chief": halving,
    "a writer that also evaluates and stops": apart(
        lambda: compiled(net()), fit=lambda model: fitted(model, callbacks=[Evaluating(FOLDER + "/a.keras", save_freq=10**6)])
    ),
    "a writer that also adds to the logs": apart(lambda: compiled(net()), fit=lambda model: logged(model, Logging, "log.csv")),
    "a writer of events that also adds to the logs": apart(lambda: compiled(net()), fit=lambda model: logged(model, Drawing, "events")),
    "positions, and tokens of all rows": apart(text, tokens),
    "positions, and tokens of all rows, gathered": apart(lambda: text(root), tokens),
    "positions, in steps made anew after a validation": apart(
        lambda: text(eager=True), fit=lambda model: fitted(model, tokens, validation_data=(tokens, Y))
    ),
    "tokens of fewer rows than workers": apart(text, tokens[:17], Y[:17]),
    "a head that is trained alone": apart(lambda: compiled(Head())),
    "a mask of the whole batch": apart(lambda: compiled(net(Masking()))),
    "rows that are mixed now and then": apart(lambda: compiled(net(Sometimes()))),
    "a large loss that keeps a center": apart(lambda: compiled(few(layers.Dense(9000)), Center())),
    "convolutions in groups, which XLA compiles": apart(
        lambda: compiled(keras.Sequential([keras.Input((4, 4, 4)), layers.Conv2D(4, 3, groups=2), layers.Flatten(), layers.Dense(3)])),
        np.sin(np.arange(22 * 64.0)).reshape(22, 4, 4, 4),
    ),
    "gradients by tf.gradients": apart(lambda: compiled(Graphed())),
    "logits behind probabilities, gathered": apart(
        lambda: compiled(few(layers.Dense(3, activation="softmax")), "categorical_crossentropy", metrics=[largest]),
        99 * X,
        np.eye(3)[np.arange(22) % 3],
    ),
    "an activation of its own": apart(lambda: compiled(few(layers.Dense(6, activation=activation), layers.Dense(3))), 6 * X + 6),
    "warnings about it, but one": messages.getvalue().count("differed from the chief's") - 1,
    "a list of callbacks of Keras' own": apart(lambda: compiled(net()), fit=listed),
    "a penalty of its own, and one of its outputs": apart(lambda: compiled(net(Penalized(activity_regularizer="l2")))),
    "hinge of labels that are -1 in some rows": apart(
        lambda: compiled(net(layers.Dense(1)), "hinge"), X, np.arange(22.0)[:, None] % 8 // 3 - 1
    ),
    "rows cut to the longest of the batch": apart(cut, [np.sin(np.arange(528.0)).reshape(22, 6, 4), 1 + np.arange(22) % 6]),
    "words padded to the longest text": apart(lambda: reading(Words()), texts),
    "words padded by Keras": apart(vectorized, texts),
    "the five strongest rows": apart(lambda: compiled(net(Strongest()))),
    "a fit of its own": apart(lambda: compiled(Fitting()), fit=begun_apart),
    "layers that are computed again": apart(lambda: compiled(net(Again()), root)),
    "what is looked up once for all rows of a worker": apart(unique, tokens),
    "what is looked up once, and more": apart(padded, tokens),
    "shares that are taken for probabilities of their own": apart(
        lambda: compiled(net(Probable()), "binary_crossentropy", metrics=[largest]), X, np.float64(Y > 1)
    ),
    "layers that are computed again, twice": apart(lambda: compiled(net(Nested()), root)),
    "a step that XLA compiles": apart(lambda: compiled(Jitted())),
    "a layer that is traced on its own, fitted twice": apart(lambda: compiled(net(Function())), fit=twice),
}))
"""
NAMES = re.findall(r'^    "(.+?)": ', PROGRAM, re.MULTILINE)


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    done = forked.run("-c", PROGRAM, str(tmp_path_factory.mktemp("written")))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_several_workers_train_as_one(differences, name):
    """The largest difference of a weight."""
    assert abs(differences[name]) < 1e-9
