#!/usr/bin/env bash
# TensorFlow 2.21.0: `enable_op_determinism` does not reach a dataset that was looked at before.
#
# What is drawn in a parallel `map` of a dataset comes in another order in each run, though all seeds are set. `enable_op_determinism` makes
# `tf.data` run such calls one by one. But a dataset is optimized once, when its first iterator is made, and keeps that: after a mere
# `next(iter(dataset))`, to see the shapes of a batch, the setting changes nothing for it, and its numbers differ in each run. There is no
# warning, and no error. A dataset made of it (`dataset.with_options(tf.data.Options())`) is optimized again.
#
# Here: 5,000 random numbers that a dataset draws in 8 parallel calls, in three processes, which look at the dataset before they ask for
# determinism, or do not.
#
# Expected: the same numbers in all processes, either way.
# Seen: the same where nobody has looked; others in each process where somebody has; the same again of a dataset made of that.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tensorflow-cpu==2.21.0 numpy==2.4.6

cat > look.py <<'PROGRAM'
import hashlib
import sys

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
data = tf.data.Dataset.range(5000).map(lambda _: tf.random.uniform([]), num_parallel_calls=8)
if sys.argv[1] != "unseen":
    next(iter(data))
tf.config.experimental.enable_op_determinism()
if sys.argv[1] == "made of it":
    data = data.with_options(tf.data.Options())
numbers = np.array(list(data.as_numpy_iterator()))
print(hashlib.sha256(numbers.tobytes()).hexdigest())
PROGRAM
for how in unseen seen "made of it"; do
  for _ in 1 2 3; do
    TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= venv/bin/python look.py "$how" 2> errors || { cat errors >&2; exit 1; }
  done | sort -u | wc -l | sed "s/^/$how: different results of three: /"
done | tee out
seen="unseen: different results of three: 1
seen: different results of three: 3
made of it: different results of three: 1"
if [ "$(cat out)" = "$seen" ]; then
  echo "TensorFlow 2.21.0: as seen before: determinism does not reach a dataset that was looked at"
else
  echo "TensorFlow 2.21.0: changed" >&2
  exit 1
fi
