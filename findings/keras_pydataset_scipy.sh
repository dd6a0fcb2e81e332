#!/usr/bin/env bash
# Keras 3.15.1 on TensorFlow 2.21.0: SciPy's sparse batches train from a generator and as an array, and not from a `PyDataset`.
#
# `fit` takes a matrix of `scipy.sparse` for a sparse input, and a generator of such batches: both convert them to TensorFlow's sparse
# tensors. A `PyDataset` (the class for batches that are made as they are needed) describes them as sparse, too, but hands them on as they
# are, so that TensorFlow refuses the first batch as one of another structure.
#
# Here: the same two batches in each of the three forms.
#
# Expected: the same loss three times.
# Seen: the same loss twice, then TypeError: `generator` yielded an element that did not match the expected structure.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.4.6 scipy==1.17.1

cat > sparse.py <<'PROGRAM'
import keras
import numpy as np
import scipy.sparse

x = scipy.sparse.csr_matrix(np.eye(8, 5, dtype=np.float32))
y = np.arange(8, dtype=np.float32)[:, None]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        rows = slice(4 * index, 4 * index + 4)
        return x[rows], y[rows]


def generator():
    yield from (Batches()[index] for index in range(2))


for name, given in (("array", (x, y)), ("generator", (generator(),)), ("PyDataset", (Batches(),))):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((5,), sparse=True), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    try:
        print(f"{name}: {model.fit(*given, batch_size=4 if name == 'array' else None, shuffle=False, verbose=0).history['loss'][0]:.3f}")
    except Exception as error:
        print(f"{name}: {str(error).partition('TypeError: ')[2][:70] or error}")
PROGRAM
TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= venv/bin/python sparse.py 2> errors | tee out || { cat errors >&2; exit 1; }
if [ "$(cut -d: -f2 out | head -2 | sort -u | wc -l)" = 1 ] && grep -q '^PyDataset: `generator` yielded an element that did not match' out; then
  echo "Keras 3.15.1: as seen before: a PyDataset of SciPy's sparse batches does not train"
else
  echo "Keras 3.15.1: changed" >&2
  exit 1
fi
