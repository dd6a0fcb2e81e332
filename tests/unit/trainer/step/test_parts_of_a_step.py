"""Arithmetic of a step's parts on a few numbers: no training, no other worker."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from trainer.config.schema import Reduction
from trainer.keras_step import additive, optimizer, whole_batch
from trainer.reduction.chain import GraphChain, Stopwatch
from trainer.reduction.method import Method, Setting
from trainer.reduction.selection import half, make_method
from trainer.step import worker_step


def test_devices_and_steps_draw_different_numbers():
    seeds = {tuple(worker_step._offset(device, tf.constant(number)).numpy().tolist()) for device in range(3) for number in range(3)}
    assert len(seeds) == 9


@pytest.mark.parametrize("moves", [(4.0, 8.0), (3, 9)])
def test_moved_statistics_are_weighted_by_share(moves):
    """The parts of two workers, one of which has a third of the batch, add up to the weighted mean; of counts to the nearest."""
    parts = [worker_step._fraction_of(tf.constant(move), tf.constant(part)) for move, part in zip(moves, (1 / 3, 2 / 3), strict=True)]
    moved = worker_step._as_moved(parts[0] + parts[1], tf.constant(moves[0]).dtype)
    assert moved.dtype == tf.constant(moves[0]).dtype
    assert moved.numpy() == pytest.approx(moves[0] / 3 + moves[1] * 2 / 3)


def test_a_count_is_rounded_not_cut():
    assert worker_step._as_moved(tf.constant(0.9999999), tf.int32).numpy() == 1


@pytest.mark.parametrize(("regularizer", "factor"), [(keras.regularizers.L2(0.25), 0.5), (keras.regularizers.L1(0.25), 0.0), (None, 0.0)])
def test_the_factor_of_a_penalty_is_its_gradient(regularizer, factor):
    weight = keras.Variable([1.0])
    weight.regularizer = regularizer
    assert optimizer.penalty(weight) == factor


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_keep_a_gradients_scale(dtype):
    shorten, widen = half(Reduction(name="half", dtype=dtype)).computations
    gradient, sums = tf.constant([[0.5, -(2.0**-20)]]), tf.constant([3.0])
    _, sent = shorten([sums, gradient])
    assert [tensor.dtype.name for tensor in sent] == ["float32", dtype]
    (same, back), _ = widen(sent)
    assert np.array_equal(same, sums)
    assert np.array_equal(back, gradient)


def test_a_single_device_reduces_nothing():
    assert not make_method(Reduction(), [(100, 100)], Setting(1)).computations


def test_a_profiled_reduction_sums_over_workers():
    doubling = GraphChain(Method([lambda values: ([], values), lambda values: (values, [])]), lambda tensors: [2 * one for one in tensors])
    profiled = doubling.profiled(lambda function: function)
    given = [tf.constant([1.0, 2.0])]
    for values in (doubling(given), profiled(given, Stopwatch(lambda: None))):
        assert np.array_equal(values[0], [2.0, 4.0])


@pytest.mark.parametrize(
    ("reduction", "weights", "mask", "expected"),
    [
        ("sum_over_batch_size", None, [True, False], 1.0 / 5),
        ("mean_with_sample_weight", [3.0, 1.0], None, (3.0 + 4.0) / 6),
        ("sum_over_batch_size", None, None, 0.25 * 2.5),
    ],
)
def test_a_loss_is_divided_by_all_workers_count(reduction, weights, mask, expected):
    """The values are 1 and 4, and on the other workers things of 4 (masked) or 2 (weights) in all count."""
    others = 4.0 if mask else 2.0
    group = SimpleNamespace(rank=0, workers=2, sum=lambda tensors: [tensors[0] + others])
    step = additive.StepByRows(SimpleNamespace(_compile_loss=None), group, whole_batch.Rows(8, 0, 2))
    whole_batch.install(additive.HOOKS)
    with step():
        part = keras_loss.reduce_weighted_values(
            tf.constant([1.0, 4.0]),
            None if weights is None else tf.constant(weights),
            None if mask is None else tf.constant(mask),
            reduction,
            "float32",
        )
    assert float(part) == pytest.approx(expected)
