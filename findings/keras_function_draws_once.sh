#!/usr/bin/env bash
# Keras 3.15.1 on TensorFlow 2.21.0: a layer whose `call` is a tf.function draws the same random numbers in each step of `fit`.
#
# Building a functional or Sequential model traces the layer's function once, on symbolic inputs, in a scope in which a SeedGenerator's new
# state goes nowhere. A `call` without a `training` argument has the same signature in `fit`, so TensorFlow takes that trace again: the
# numbers are drawn from the first state, in each step, and the state stays as it was. There is no warning.
#
# Here: a layer that adds noise to its input, as it is, with @tf.function, and with @tf.function in a model that is built by its first
# batch; the noise of three steps, by a metric that keeps what the layer gives for zeros.
#
# Expected: the noise is another one in each step, and the generator's state moves three times, with @tf.function, too.
# Seen: with @tf.function, all steps have the same noise, and the state does not move. Where the model is built by its first batch, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.4.6

cat > noise.py <<'PROGRAM'
import keras
import numpy as np
import tensorflow as tf


class Noise(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(4)

    def call(self, x):
        return x + keras.random.normal(tf.shape(x), seed=self.seeds)


class Traced(Noise):
    call = tf.function(Noise.call)


class Seen(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        noise.append(float(logs["first"]))
        self.model.reset_metrics()


for name, kind, built in (("plain", Noise, True), ("traced", Traced, True), ("traced, built late", Traced, False)):
    keras.utils.set_random_seed(1)
    noise = []
    model = keras.Sequential([*([keras.Input((2,))] if built else []), kind()])
    first = keras.metrics.MeanMetricWrapper(lambda y, found: found[:, :1], name="first")
    model.compile("sgd", "mse", metrics=[first], jit_compile=False)
    model.fit(np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32), batch_size=1, verbose=0, callbacks=[Seen()])
    moved = model.layers[-1].seeds.state.numpy()[1] > 0
    print(f"{name}: {len(set(noise))} kinds of noise in {len(noise)} steps, the state {'moved' if moved else 'stayed'}")
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= venv/bin/python noise.py 2> errors | tee out || { cat errors >&2; exit 1; }
seen="plain: 3 kinds of noise in 3 steps, the state moved
traced: 1 kinds of noise in 3 steps, the state stayed
traced, built late: 1 kinds of noise in 3 steps, the state stayed"
if [ "$(cat out)" = "$seen" ]; then
  echo "Keras 3.15.1, TensorFlow 2.21.0: as seen before: a layer whose call is a tf.function draws once"
else
  echo "Keras 3.15.1, TensorFlow 2.21.0: changed" >&2
  exit 1
fi
