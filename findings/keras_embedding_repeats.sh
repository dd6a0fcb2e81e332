#!/usr/bin/env bash
# Keras 3.15.1 on TensorFlow 2.21.0: a token that an Embedding looks up several times in a batch is not updated by the optimizer's rule.
#
# An Embedding's gradient is a tf.IndexedSlices with one row per lookup, so a repeated token has several rows. Keras squares these rows first and
# adds them up afterwards: a token looked up n times with the gradient g gets the second moment n * g**2 instead of (n * g)**2.
#
# Here: one step of each optimizer on one token that fills a batch of n places, all with the same gradient; and the same step of a Dense layer
# on the token's one-hot rows, which is the same function with the same gradient, as one dense tensor.
#
# Expected: both layers move by the same. Adam, Nadam and RMSprop move a weight in the first step by the learning rate times a constant,
# whatever the size of the gradient, so n does not matter.
# Seen: the Embedding moves sqrt(n) times as far with Adam, AdamW, Nadam and RMSprop: 4 times for 16 places; 2.6 times with Adagrad. SGD, Adamax
# and Lion are equal. Keras on JAX moves both layers by the same. No warning. So a training on several workers that sums dense gradients (an
# all-reduce) ends with other weights than the same program in one process.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tensorflow-cpu==2.21.0 keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

cat > steps.py <<'PROGRAM'
import keras
import numpy as np

OPTIMIZERS = ("SGD", "Adamax", "Lion", "Adam", "AdamW", "RMSprop", "Adagrad", "Nadam")
TOKEN, TOKENS, RATE = 3, 8, 0.1


def moved(layer, places, kind, batch):
    """How far one step moves the token's weight."""
    model = keras.Sequential([keras.Input(batch.shape[1:], dtype=batch.dtype), layer, keras.layers.Reshape((1,))])
    settings = {"weight_decay": 0.0} if kind in ("AdamW", "Lion") else {}
    optimizer = getattr(keras.optimizers, kind)(learning_rate=RATE, **settings)
    model.compile(optimizer=optimizer, loss="mae", jit_compile=False)
    layer.set_weights([np.ones((TOKENS, 1), np.float32)])
    model.train_on_batch(batch, np.zeros((places, 1), np.float32))
    return float(1 - layer.get_weights()[0][TOKEN, 0])


for places in (1, 16):
    tokens = np.full((places, 1), TOKEN, np.int32)
    one_hot = np.eye(TOKENS, dtype=np.float32)[tokens]
    for kind in OPTIMIZERS:
        embedding = moved(keras.layers.Embedding(TOKENS, 1), places, kind, tokens)
        dense = moved(keras.layers.Dense(1, use_bias=False), places, kind, one_hot)
        print(f"{keras.backend.backend():<10} {places:>2} places  {kind:<8} Embedding {embedding:.4f}  Dense {dense:.4f}  {embedding / dense:.2f} times")
PROGRAM
for backend in tensorflow jax; do
  KERAS_BACKEND=$backend TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= JAX_PLATFORMS=cpu venv/bin/python steps.py 2> errors | tee -a out || { cat errors >&2; exit 1; }
done
apart=$(awk '$NF == "times" && $(NF - 1) != "1.00" {print $1, $2, $4, $(NF - 1)}' out)
seen="tensorflow 16 Adam 4.00
tensorflow 16 AdamW 4.00
tensorflow 16 RMSprop 4.00
tensorflow 16 Adagrad 2.60
tensorflow 16 Nadam 4.00"
if [ "$apart" = "$seen" ]; then
  echo "Keras 3.15.1, TensorFlow 2.21.0: as seen before: repeated tokens of an Embedding move farther than the optimizer's rule says"
else
  printf 'Keras 3.15.1, TensorFlow 2.21.0: changed:\n%s\n' "$apart" >&2
  exit 1
fi
