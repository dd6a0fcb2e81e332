"""Weights that a training starts from."""

import keras
import numpy as np
import pytest

from trainer import initial
from trainer.errors import LockstepError
from trainer.files import sha256_file


def model(width=3):
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(width, name="first"), keras.layers.Dense(1, name="last")])


@pytest.fixture(params=["saved.keras", "saved.weights.h5"])
def saved(request, tmp_path):
    """A model, the file of its weights, and what the configuration says of it."""
    made, path = model(), tmp_path / request.param
    made.save(path) if path.suffix == ".keras" else made.save_weights(path)
    return made, path, {"file": path.name, "sha256": sha256_file(path)}


def test_weights_are_loaded(saved):
    made, path, given = saved
    other = model()
    initial.load(other, path, given, skip_mismatch=False)
    for one, another in zip(made.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, another)


def test_a_changed_file_is_not_loaded(saved):
    _, path, given = saved
    other = model()
    before = other.get_weights()
    with path.open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x07")
    with pytest.raises(LockstepError, match="was given"):
        initial.load(other, path, given, skip_mismatch=False)
    for one, another in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, another)


def test_a_file_that_is_gone_is_named(saved):
    _, path, given = saved
    path.unlink()
    with pytest.raises(LockstepError, match=r"No such file or directory\. Fix: give the file again"):
        initial.load(model(), path, given, skip_mismatch=False)


def test_what_does_not_fit_is_refused_or_keeps_its_own_weights(saved):
    _, path, given = saved
    wide = model(4)
    before = wide.get_weights()
    with pytest.raises(LockstepError, match="they don't fit the model") as caught:
        initial.load(wide, path, given, skip_mismatch=False)
    assert len(str(caught.value)) < 800
    initial.load(wide, path, given, skip_mismatch=True)
    np.testing.assert_array_equal(wide.get_weights()[0], before[0])


@pytest.mark.parametrize(("name", "expected"), [("a.keras", ".keras"), ("a.weights.h5", ".weights.h5"), ("a.h5", ""), ("weights", "")])
def test_which_files_hold_weights(name, expected):
    assert initial.suffix(name) == expected
