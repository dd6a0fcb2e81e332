"""Weights that a training starts from."""

import keras
import numpy as np
import pytest

from trainer.checkpoint import starting_weights
from trainer.common.errors import LockstepError
from trainer.common.files import sha256_file


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
    starting_weights.load(other, path, given, skip_mismatch=False)
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
        starting_weights.load(other, path, given, skip_mismatch=False)
    for one, another in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, another)


def test_a_file_that_is_gone_is_named(saved):
    _, path, given = saved
    path.unlink()
    with pytest.raises(LockstepError, match=r"No such file or directory\. Fix: give the file again"):
        starting_weights.load(model(), path, given, skip_mismatch=False)


def test_what_does_not_fit_is_refused_or_kept(saved):
    """What does not fit is refused or keeps its own weights."""
    _, path, given = saved
    wide = model(4)
    before = wide.get_weights()
    with pytest.raises(LockstepError, match="they don't fit the model") as caught:
        starting_weights.load(wide, path, given, skip_mismatch=False)
    assert len(str(caught.value)) < 800
    assert starting_weights.load(wide, path, given, skip_mismatch=True) == ["first", "last"]
    np.testing.assert_array_equal(wide.get_weights()[0], before[0])


def another(width=3):
    """Other layers around some of the same names, one of them inside a model."""
    inside = keras.Sequential([keras.Input((width,)), keras.layers.Dense(2, name="new"), keras.layers.Dense(width, name="inner")])
    layers = [keras.layers.Dense(width, name="first"), keras.layers.Dropout(0.1), inside, keras.layers.Dense(1, name="last")]
    return keras.Sequential([keras.Input((2,)), *layers])


def test_layers_find_their_weights_by_name(saved):
    made, path, given = saved
    other = another()
    with pytest.raises(LockstepError, match="they don't fit the model"):
        starting_weights.load(another(), path, given, skip_mismatch=False)
    assert starting_weights.load(other, path, given, skip_mismatch=False, by_name=True) == ["new", "inner"]
    for name in ("first", "last"):
        for one, theirs in zip(made.get_layer(name).get_weights(), other.get_layer(name).get_weights(), strict=True):
            np.testing.assert_array_equal(one, theirs)


def test_names_reach_into_models_and_shapes_must_fit(tmp_path):
    """By name reaches into models and shapes must fit unless skipped."""
    made, path = another(), tmp_path / "saved.weights.h5"
    made.save_weights(path)
    given = {"file": path.name, "sha256": sha256_file(path)}
    again = another()
    assert starting_weights.load(again, path, given, skip_mismatch=False, by_name=True) == []
    np.testing.assert_array_equal(again.get_weights()[3], made.get_weights()[3])
    with pytest.raises(LockstepError, match="they don't fit the model"):
        starting_weights.load(another(4), path, given, skip_mismatch=False, by_name=True)
    assert starting_weights.load(another(4), path, given, skip_mismatch=True, by_name=True) == ["first", "new", "inner", "last"]


def test_file_without_any_layers_name_is_refused(saved):
    """A file none of whose names is a layers is refused."""
    _, path, given = saved
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="else")])
    with pytest.raises(LockstepError, match=r"none of its layers has the name of one in the file \(first, last"):
        starting_weights.load(other, path, given, skip_mismatch=False, by_name=True)


def test_name_twice_in_file_is_that_of_outermost(tmp_path):
    def twice():
        inside = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="one")], name="inside")
        return keras.Sequential([keras.Input((2,)), inside, keras.layers.Dense(2, name="one")])

    made, path = twice(), tmp_path / "saved.weights.h5"
    made.save_weights(path)
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="one")])
    assert starting_weights.load(other, path, {"file": path.name, "sha256": sha256_file(path)}, skip_mismatch=False, by_name=True) == []
    np.testing.assert_array_equal(other.get_weights()[0], made.layers[1].get_weights()[0])


def test_links_in_a_file_are_not_followed(tmp_path):
    import h5py

    outside, path = tmp_path / "outside.weights.h5", tmp_path / "saved.weights.h5"
    model().save_weights(outside)
    with h5py.File(path, "w") as file:
        file["layers"] = h5py.ExternalLink(str(outside), "/layers")
    with pytest.raises(LockstepError, match="none of its layers has the name"):
        starting_weights.load(model(), path, {"file": path.name, "sha256": sha256_file(path)}, skip_mismatch=False, by_name=True)


@pytest.mark.parametrize(("name", "expected"), [("a.keras", ".keras"), ("a.weights.h5", ".weights.h5"), ("a.h5", ""), ("weights", "")])
def test_which_files_hold_weights(name, expected):
    assert starting_weights.suffix(name) == expected


@pytest.fixture
def trained(tmp_path):
    """A model after a step, the file of its weights, and what the configuration says of it."""

    def make(optimizer):
        made, path = model(), tmp_path / "trained.keras"
        made.compile(optimizer(0.5), loss="mse")
        made.train_on_batch(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32))
        made.save(path)
        return made, path, {"file": path.name, "sha256": sha256_file(path)}

    return make


@pytest.mark.parametrize("state", [False, True])
def test_optimizers_state_is_loaded_only_if_asked(trained, state):
    made, path, given = trained(keras.optimizers.Adam)
    other = model()
    other.compile(keras.optimizers.Adam(0.1), loss="mse")
    other.optimizer.build(other.trainable_variables)
    starting_weights.load(other, path, given, skip_mismatch=False, optimizer_state=state)
    np.testing.assert_array_equal(other.get_weights()[0], made.get_weights()[0])
    rate = float(other.optimizer.learning_rate.numpy())
    assert (rate, int(other.optimizer.iterations.numpy())) == (pytest.approx(0.5 if state else 0.1), int(state))
    assert bool(np.any(other.optimizer.variables[2].numpy())) == state


def several(rate):
    """One of two variables' own, which a function chooses."""
    two = [keras.optimizers.ScheduleFreeAdamW(rate), keras.optimizers.ScheduleFreeAdamW(rate)]
    return keras.optimizers.MultiOptimizer(lambda variable: two["bias" in variable.path])


@pytest.mark.parametrize("optimizer", [keras.optimizers.ScheduleFreeAdamW, several])
def test_an_optimizer_begins_with_the_loaded_weights(trained, optimizer):
    """ScheduleFreeAdamW averages copies of the weights that it is built with."""
    _, path, given = trained(keras.optimizers.Adam)
    other = model()
    other.compile(optimizer(0.1), loss="mse")
    other.optimizer.build(other.trainable_variables)
    starting_weights.load(other, path, given, skip_mismatch=False)
    starting_weights.begin_again(other.optimizer)
    weights = [tuple(weight.ravel()) for weight in other.get_weights()]
    copies = {tuple(variable.numpy().ravel()) for variable in other.optimizer.variables[2:]}
    assert set(weights) <= copies


@pytest.mark.parametrize("spoil", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: bytes(len(data))])
def test_damaged_snapshot_is_named(tmp_path, spoil):
    made, path = model(), tmp_path / "epoch-0001.keras"
    made.save(path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(LockstepError, match=r"epoch-0001\.keras: the snapshot can't be read \(.+\)\. Fix: name another epoch"):
        starting_weights.load_snapshot(made, path)
