"""Rounding by bits gives what ml_dtypes gives."""

import ml_dtypes
import numpy as np

from trainer.network.bfloat16 import KIND, narrow, widen


def samples():
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 100_000, dtype=np.uint32)
    halves = (random.integers(0, 2**16, 1000, dtype=np.uint32) << 16) + 0x8000
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 3.4e38, 1e-45], np.float32)
    return np.concatenate([bits.view(np.float32), halves.view(np.float32), special])


def test_narrow_rounds_to_nearest_and_keeps_nan():
    values = samples().reshape(4, 2, -1)
    with np.errstate(invalid="ignore"):
        actual, expected = narrow(values), values.astype(ml_dtypes.bfloat16)
    assert (actual.dtype, actual.shape) == (KIND, values.shape)
    numbers = ~np.isnan(values)
    assert actual[numbers].tobytes() == expected[numbers].tobytes()
    assert np.isnan(actual[~numbers].astype(np.float32)).all()


def test_widen_is_exact():
    values = narrow(samples().reshape(4, 2, -1))
    assert widen(values).dtype == np.float32
    np.testing.assert_array_equal(widen(values), values.astype(np.float32))
    assert widen(np.ones(3, np.float16)).dtype == np.float32
    whole = np.ones(3, np.float32)
    assert widen(whole) is whole
