#!/usr/bin/env bash
# TensorFlow 2.21.0: the variables of a traced function come in another order in each process.
#
# `ConcreteFunction.variables` is documented as the "Sequence of variables for this function". While a function is traced, its graph keeps
# the variables that it meets in a set of weak references, by their addresses in memory, and the sequence is made of that. So the same
# program lists the same variables otherwise each time that it is started. Whoever pairs them with values by place, such as those of another
# worker of a cluster or those that an earlier process saved, gives variables of one shape each other's values, without an error. The tensors
# in `captured_inputs`, among them the variables' handles, come in the order in which the function uses them.
#
# Here: a function that adds up eight scalars, traced in six processes.
#
# Expected: one order, in all processes.
# Seen: several orders of `variables`, one of `captured_inputs`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet tensorflow-cpu==2.21.0 numpy==2.4.6

cat > trace.py <<'PROGRAM'
import sys

import tensorflow as tf

numbers = [tf.Variable(float(number), name=f"number{number}") for number in range(8)]
traced = tf.function(lambda: tf.add_n([number.read_value() for number in numbers])).get_concrete_function()
names = {id(number.handle): number.name for number in numbers}
if sys.argv[1] == "variables":
    print([variable.name for variable in traced.variables])
else:
    print([names[id(captured)] for captured in traced.captured_inputs])
PROGRAM
for what in variables captured_inputs; do
  orders=$(for _ in 1 2 3 4 5 6; do
    TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= venv/bin/python trace.py "$what" 2> errors || { cat errors >&2; exit 1; }
  done | sort -u | wc -l)
  if [ "$orders" -gt 1 ]; then echo "$what: several orders"; else echo "$what: one order"; fi
done | tee out
if [ "$(cat out)" = "$(printf 'variables: several orders\ncaptured_inputs: one order')" ]; then
  echo "TensorFlow 2.21.0: as seen before: a function's variables have another order in each process"
else
  echo "TensorFlow 2.21.0: changed" >&2
  exit 1
fi
