"""Sums that do not depend on threads, in processes of their own: the number of threads is a process's."""

import pytest

from tests.unit import forked

SCRIPT = """
import json, sys
from trainer.worker import process
process.quiet_tensorflow()
import numpy as np
import tensorflow as tf
from trainer.reduction.fixed_sum import fixed_sum, fixed_sums
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
random, found = np.random.default_rng(0), []
for shape in ((), (0,), (1,), (1024,), (1025,), (3, 3, 8, 16), (3600, 1000), (2048, 1024)):
    values = random.standard_normal(shape).astype(np.float32) ** 2
    traced = tf.function(fixed_sum)
    found.append([float(traced(tf.constant(values, tf.float32))), float(values.sum(dtype=np.float64))])
values = random.standard_normal((2, 70_000)) ** 2
found += zip(fixed_sums(tf.constant(values)).numpy().tolist(), values.sum(axis=1).tolist())
print(json.dumps(found))
"""


def test_bits_do_not_depend_on_threads():
    one, eight = (forked.answer(SCRIPT, threads) for threads in ("1", "8"))
    assert one == eight
    for actual, expected in one:
        assert actual == pytest.approx(expected, rel=1e-6)
