#!/usr/bin/env bash
# Keras 3.15.1 on TensorFlow 2.21.0: a short last batch counts as much as a whole one in the loss of each output, but not in their sum.
#
# A model of several outputs reports `loss` and a loss of each output. Keras weighs a batch in an output's loss with the first dimension of
# the output's static shape. In a traced step that dimension is not known, except where all batches have the same size, so there is no
# weight: the value is a mean of batches. `loss` is weighed with the number of rows when the step runs.
#
# Here: evaluate() of nine rows with weights that are fixed, in batches of nine, of three, and of eight (and one). The target of the ninth
# row is large. The same on JAX, where shapes are those of the arrays.
#
# Expected: with each size of batches the same three numbers, and the losses of both outputs add up to `loss`, as their weights are 1.
# Seen: on TensorFlow, in batches of eight, `loss` is 279.67, and the losses of the outputs are 1250.50 and 1.00. In other batches, with
# run_eagerly=True, and on JAX, they are 278.67 and 1.00. fit() computes `val_a_loss` in the same way, which callbacks watch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tensorflow-cpu==2.21.0 keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

cat > outputs.py <<'PROGRAM'
import keras
import numpy as np

x = np.zeros((9, 1), np.float32)
targets = {"a": np.ones((9, 1), np.float32), "b": np.ones((9, 1), np.float32)}
targets["a"][8] = 50

for eager in (False, True):
    for rows in (9, 3, 8):
        inputs = keras.Input((1,))
        model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(inputs) for name in targets})
        model.compile(loss={name: "mse" for name in targets}, run_eagerly=eager, jit_compile=False)
        values = model.evaluate(x, targets, batch_size=rows, verbose=0, return_dict=True)
        numbers = "  ".join(f"{name} {values[name]:.2f}" for name in ("loss", "a_loss", "b_loss"))
        print(f"{keras.backend.backend()} {'eager ' if eager else 'traced'} batches of {rows}: {numbers}")
PROGRAM
for backend in tensorflow jax; do
  KERAS_BACKEND=$backend TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= JAX_PLATFORMS=cpu venv/bin/python outputs.py 2> errors | tee -a out || { cat errors >&2; exit 1; }
done
apart=$(grep -v "loss 279.67  a_loss 278.67  b_loss 1.00" out || true)
seen="tensorflow traced batches of 8: loss 279.67  a_loss 1250.50  b_loss 1.00"
if [ "$apart" = "$seen" ]; then
  echo "Keras 3.15.1, TensorFlow 2.21.0: as seen before: without a weight, a short last batch counts as much as a whole one"
else
  printf 'Keras 3.15.1, TensorFlow 2.21.0: changed:\n%s\n' "$apart" >&2
  exit 1
fi
