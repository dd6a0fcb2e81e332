#!/usr/bin/env bash
# Keras 3.15.1 on TensorFlow 2.21.0: with ScheduleFreeAdamW, the first step of `fit` replaces a model's weights by zeros.
#
# The optimizer keeps a second copy of each weight, which it takes when it is built, and moves the weights toward it. `fit` builds it while
# its step is traced. A tf.function that makes variables is traced twice, and only the second trace runs; there the optimizer is built
# already. So the copies stay zeros, and the first step moves the weights all the way to them. There is no warning, and no error.
#
# Here: one step with a learning rate of 1e-9 from random weights, which must hardly change: with `fit` as it is, with run_eagerly=True, and
# with an optimizer that was built before; and on JAX.
#
# Expected: the weights stay as they were within 1e-6, each time.
# Seen: on TensorFlow with `fit` as it is, all weights are 0 within 1e-6 after the step, so whatever was pretrained or loaded is lost, and
# hidden layers have nothing that tells their units apart. Eager steps keep the weights, so does
# `model.optimizer.build(model.trainable_variables)` before `fit`, and so does JAX.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tensorflow-cpu==2.21.0 keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

cat > first_step.py <<'PROGRAM'
import keras
import numpy as np

x, y = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
ways = ["fit", "built before"] + (["eager"] if keras.backend.backend() == "tensorflow" else [])
for way in ways:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    model.compile(keras.optimizers.ScheduleFreeAdamW(1e-9), "mse", run_eagerly=way == "eager", jit_compile=False)
    if way == "built before":
        model.optimizer.build(model.trainable_variables)
    (before,) = model.get_weights()
    model.fit(x, y, verbose=0)
    (after,) = model.get_weights()
    kept, zeros = np.allclose(after, before, atol=1e-6), np.allclose(after, 0, atol=1e-6)
    print(f"{keras.backend.backend()} {way}: {'kept' if kept else 'zeros' if zeros else 'others'}")
PROGRAM
for backend in tensorflow jax; do
  KERAS_BACKEND=$backend TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= JAX_PLATFORMS=cpu venv/bin/python first_step.py 2> errors | tee -a out || { cat errors >&2; exit 1; }
done
seen="tensorflow fit: zeros
tensorflow built before: kept
tensorflow eager: kept
jax fit: kept
jax built before: kept"
if [ "$(cat out)" = "$seen" ]; then
  echo "Keras 3.15.1, TensorFlow 2.21.0: as seen before: the first step of fit with ScheduleFreeAdamW replaces the weights by zeros"
else
  echo "Keras 3.15.1, TensorFlow 2.21.0: changed" >&2
  exit 1
fi
