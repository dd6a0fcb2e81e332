#!/usr/bin/env bash
# Keras 3.15.1 on TensorFlow 2.21.0: where a data set's length is not known, each epoch of `fit` counts a step that never was.
#
# Only the end of the data tells `fit` that an epoch is over. By then TensorFlow has run those parts of the traced step that need no batch:
# the optimizer's count went up by one, and random generators of layers, such as Dropout's, moved on. So schedules, Adam's bias correction
# and what is drawn in the next epoch are those of another step. From the second epoch on Keras knows the length, unless there are fewer
# epochs than that. There is no warning, and no error.
#
# Here: the same five batches, as a data set of known length and from a generator, two epochs, with a rate that halves at each step.
#
# Expected: the optimizer counts 10 steps, and the weights are the same.
# Seen: from the generator it counts 12, and the weights are others. Eager steps count 10.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.4.6

cat > count.py <<'PROGRAM'
import keras
import numpy as np
import tensorflow as tf

x, y = np.arange(60, dtype=np.float32).reshape(20, 3) / 60, np.ones((20, 1), np.float32)
known = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
specs = (tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((None, 1), tf.float32))


def batches():
    for start in range(0, 20, 4):
        yield x[start : start + 4], y[start : start + 4]


sets = {"known": known, "generator": tf.data.Dataset.from_generator(batches, output_signature=specs)}
for name, data, eager in (("known", known, False), ("generator", sets["generator"], False), ("generator, eager", sets["generator"], True)):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    model.compile(keras.optimizers.SGD(rate), "mse", run_eagerly=eager)
    model.fit(data, epochs=2, verbose=0)
    weights = model.get_weights()[0]
    first = weights if name == "known" else first
    same = "the same" if np.allclose(weights, first, atol=1e-6) else "other"
    print(f"{name}: {int(model.optimizer.iterations.numpy())} steps, {same} weights")
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= KERAS_BACKEND=tensorflow venv/bin/python count.py 2> errors | tee out || { cat errors >&2; exit 1; }
seen="known: 10 steps, the same weights
generator: 12 steps, other weights
generator, eager: 10 steps, the same weights"
if [ "$(cat out)" = "$seen" ]; then
  echo "Keras 3.15.1, TensorFlow 2.21.0: as seen before: each epoch from a generator of unknown length counts one step too many"
else
  echo "Keras 3.15.1, TensorFlow 2.21.0: changed" >&2
  exit 1
fi
