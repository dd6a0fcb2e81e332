"""A snapshot from a host in another's hands: its weights are read, nothing in it runs, and no file of this machine is read through it."""

import shutil
import zipfile

import h5py
import keras
import numpy as np
import pytest

import trainer.evaluation.evaluate
import trainer.evaluation.predict
from trainer.checkpoint import starting_weights
from trainer.common.errors import LockstepError
from trainer.common.files import sha256_file

CODE = "__import__('pathlib').Path({!r}).touch()"


def model(*layers):
    return keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(3, name="last")])


@pytest.fixture
def hostile(tmp_path):
    """A snapshot with code in a layer, which would make the file `ran`."""
    mark = str(tmp_path / "ran")
    runs = eval(f"lambda x: ({CODE.format(mark)}, x)[1]")
    path = tmp_path / "epoch-0001.keras"
    made = model(keras.layers.Lambda(runs, output_shape=(2,)))
    made.save(path)
    (tmp_path / "ran").unlink(missing_ok=True)
    return path


@pytest.fixture
def weights(tmp_path):
    """A file of weights in which `make(group, name)` makes another dataset in the place of the first layer's; its path."""

    def write(make):
        path = tmp_path / "a.weights.h5"
        model().save_weights(path)
        with h5py.File(path, "a") as file:
            names = []
            file.visititems(lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) and one.shape == (2, 3) else None)
            del file[names[0]]
            make(file, names[0])
        return path

    return write


def test_code_does_not_run_where_weights_are_read(hostile, tmp_path):
    reader = model()
    reader.load_weights(hostile)
    starting_weights.load(reader, hostile, {"file": hostile.name, "sha256": sha256_file(hostile)}, skip_mismatch=False)
    assert not (tmp_path / "ran").exists()


def test_code_is_refused_where_models_are_read(hostile, tmp_path):
    """Code in a snapshot is refused where the model is read.

    As benchmarks/inference.yml reads it. None of our modules turns the safe mode off.
    """
    assert trainer.evaluation.evaluate
    assert trainer.evaluation.predict
    with pytest.raises(ValueError, match="unsafe"):
        keras.models.load_model(hostile, compile=False)
    assert not (tmp_path / "ran").exists()
    keras.models.load_model(hostile, compile=False, safe_mode=False)(np.ones((1, 2), np.float32))
    assert (tmp_path / "ran").exists(), "the attack is a real one"


def test_snapshot_that_points_to_another_file_is_refused(weights, tmp_path):
    """HDF5 can keep a dataset's bytes in another file: with it, weights were any file of this machine."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(64)))
    path = weights(lambda file, name: file.create_dataset(name, (2, 3), "float32", external=[(str(secret), 0, 24)]))
    with pytest.raises((LockstepError, ValueError)):
        starting_weights.load(model(), path, {"file": path.name, "sha256": sha256_file(path)}, skip_mismatch=False)


def test_snapshot_whose_array_would_fill_memory(weights):
    """An array that has a shape, and no values, takes no place in a file."""
    path = weights(lambda file, name: file.create_dataset(name, (2, 2**26), "float32", chunks=(2, 2**16)))
    with pytest.raises(LockstepError, match=r"snapshot can't be read \(.* H5 dataset .0. declares 512.00 MB but only 0.00 B"):
        starting_weights.load_snapshot(model(), path)


def test_packed_snapshot_that_would_take_hours(tmp_path):
    path, zeros = tmp_path / "epoch-0001.keras", bytes(2**24)
    model().save(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("zeros", "w") as stream:
        for _ in range(17):
            stream.write(zeros)
    why = rf"it is packed, and {path.stat().st_size:,} bytes become 285,[0-9,]+"
    with pytest.raises(LockstepError, match=rf"the snapshot can't be read \({why}\)"):
        starting_weights.load_snapshot(model(), path)
    with pytest.raises(LockstepError, match=rf"weights=epoch-0001.keras: they don't fit the model: {why}\. Fix: "):
        starting_weights.load(model(), path, {"file": path.name, "sha256": sha256_file(path)}, skip_mismatch=False)


def test_names_in_snapshots_archive_do_not_lead_out(tmp_path):
    path = tmp_path / "epoch-0001.keras"
    model().save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../evil", "evil")
        archive.writestr(f"{tmp_path}/evil", "evil")
    copy = tmp_path / "a" / "b" / path.name
    copy.parent.mkdir(parents=True)
    shutil.copy(path, copy)
    model().load_weights(copy)
    keras.models.load_model(copy)
    assert not list(tmp_path.rglob("evil"))
    assert not (tmp_path.parent / "evil").exists()
