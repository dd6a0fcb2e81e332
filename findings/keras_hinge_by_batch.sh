#!/usr/bin/env bash
# Keras 3.15.1: the hinge loss of a row depends on the labels of the other rows of its batch.
#
# `hinge` and `squared_hinge` take labels of -1 and 1, and convert 0 and 1 to them "if binary labels are provided". They decide so for a
# batch as a whole: where one label of it is neither 0 nor 1, such as a smoothed one or a -1, all labels stay as they are, and each 0 then
# has the loss 1 whatever was predicted, and no gradient. There is no warning. An epoch's loss so depends on how rows fall into batches.
#
# Here: the loss of a row with label 0 and prediction 0.5, beside a row with label 1, and beside one with label 0.9; and an epoch of the same
# four rows in batches of two, in two orders.
#
# Expected: the same loss of the row each time, and the same loss of both orders.
# Seen: 1.5 beside a label of 1, 1.0 beside one of 0.9; the two orders differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.4.6

cat > hinge.py <<'PROGRAM'
import keras
import numpy as np

loss = keras.losses.Hinge(reduction=None)
for other in (1.0, 0.9):
    both = np.asarray(loss(np.array([[0.0], [other]], np.float32), np.array([[0.5], [0.5]], np.float32)))
    print(f"beside {other}: {both[0]:.2f}")
model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
model.compile(loss="hinge", jit_compile=False)
y, predicted = np.array([[0.0], [0.9], [0.0], [1.0]], np.float32), np.full((4, 1), 0.5, np.float32)
for order in ([0, 1, 2, 3], [0, 2, 1, 3]):
    print(f"rows {order}: {model.evaluate(predicted[order], y[order], batch_size=2, verbose=0):.2f}")
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= venv/bin/python hinge.py 2> errors | tee out || { cat errors >&2; exit 1; }
seen="beside 1.0: 1.50
beside 0.9: 1.00
rows [0, 1, 2, 3]: 0.89
rows [0, 2, 1, 3]: 1.01"
if [ "$(cat out)" = "$seen" ]; then
  echo "Keras 3.15.1: as seen before: the hinge loss of a row depends on the labels of its batch"
else
  echo "Keras 3.15.1: changed" >&2
  exit 1
fi
