#!/usr/bin/env bash
# Keras 3.15.1 on TensorFlow 2.21.0: RandomElasticTransform replaces the images of a batch by its first one where the size is not known.
#
# The layer distorts as many images as the batch has when it is traced. A tf.data pipeline that keeps a smaller last batch, which is the
# default of `batch` and of `fit`, has batches of an unknown size: then it distorts one image, the first, and broadcasting gives that one
# to every row that was to be distorted. Labels stay as they were. There is no warning, and no error.
#
# Here: four images, each of one grey, 0, 50, 100 and 150, which a distortion leaves as they are, since edges are reflected; in a batch of
# four with `drop_remainder`, and in one without.
#
# Expected: 0, 50, 100, 150, both times.
# Seen: without `drop_remainder`, four images of grey 0. In eager calls and with a known size the images are their own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.4.6

cat > greys.py <<'PROGRAM'
import keras
import numpy as np
import tensorflow as tf

images = np.repeat([0, 50, 100, 150], 16 * 16).reshape(4, 16, 16, 1).astype(np.float32)


def greys(batch):
    return [round(float(image.mean())) for image in np.asarray(batch)]


layer = keras.layers.RandomElasticTransform(factor=(1.0, 1.0), scale=(1.0, 1.0), seed=1)
print("eager", greys(layer(images, training=True)))
for known in (True, False):
    batches = tf.data.Dataset.from_tensor_slices(images).batch(4, drop_remainder=known)
    for batch in batches.map(lambda one: layer(one, training=True)):
        print("drop_remainder" if known else "batch", greys(batch))
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= KERAS_BACKEND=tensorflow venv/bin/python greys.py 2> errors | tee out || { cat errors >&2; exit 1; }
seen="eager [0, 50, 100, 150]
drop_remainder [0, 50, 100, 150]
batch [0, 0, 0, 0]"
if [ "$(cat out)" = "$seen" ]; then
  echo "Keras 3.15.1, TensorFlow 2.21.0: as seen before: in a batch of unknown size, RandomElasticTransform gives all rows the first image"
else
  echo "Keras 3.15.1, TensorFlow 2.21.0: changed" >&2
  exit 1
fi
