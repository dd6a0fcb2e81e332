"""Weights that a training starts from: a file of another training, such as a snapshot."""

import contextlib
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.common.errors import LockstepError
from trainer.common.files import sha256_file
from trainer.common.patching import replaced
from trainer.common.safe_text import printable

if TYPE_CHECKING:
    import keras

SUFFIXES = (".weights.h5", ".keras")
RATIO, FREE = 100, 2**28
"""A file's contents are at most `RATIO` times as large, or `FREE` bytes; Keras allows each array 4 GB and any time."""


def suffix(name: str) -> str:
    """Suffix of a weights file, one of `SUFFIXES`; empty for any other file."""
    return next((one for one in SUFFIXES if name.endswith(one)), "")


def load(
    model: "keras.Model", path: Path, given: dict[str, str], skip_mismatch: bool, by_name: bool = False, optimizer_state: bool = False
) -> list[str]:
    """Load a file's weights into a model with the same layers, by Keras' `load_weights`.

    Args:
        model: built.
        path: the file, which others may write to.
        given: `train.weights`: the file's name and its SHA-256.
        skip_mismatch: leave layers as they are whose weights have other shapes or are not in the file.
        by_name: load what a layer of the same name has, as Keras' `by_name` did for its older files.
        optimizer_state: load the optimizers' rate, steps and averages, too.

    Returns:
        Names of the layers that are left as they are.

    Raises:
        LockstepError: the file is missing, is not the one that was given, or does not fit the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / f"weights{suffix(given['file'])}"
        try:
            shutil.copyfile(path, own)
        except OSError as error:
            raise LockstepError(f"weights={given['file']}: {path}: {error.strerror}. Fix: give the file again, -e weights=FILE") from None
        sha256 = sha256_file(own)
        if sha256 != given["sha256"]:
            raise LockstepError(f"weights={given['file']}: {path} has SHA-256 {sha256[:16]}..., and {given['sha256'][:16]}... was given")
        try:
            with _small(own):
                return _loaded(model, own, skip_mismatch, by_name, optimizer_state)
        except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
            reason = _reason(error).replace(str(own), given["file"])
            raise LockstepError(
                f"weights={given['file']}: they don't fit the model: {reason:.400}. Fix: give weights of a model with the same layers, or "
                "leave out what does not fit: -e set=train.skip_mismatch=true"
            ) from None


def load_snapshot(model: "keras.Model", path: Path) -> None:
    """Take the weights of a run's snapshot.

    Raises:
        LockstepError: it is damaged, or of another model.
    """
    try:
        with _small(path):
            model.load_weights(path)
    except Exception as error:  # a damaged file makes Keras, HDF5 and zipfile raise nearly anything
        why = printable(_reason(error) or type(error).__name__, 300)
        raise LockstepError(
            f"{path}: the snapshot can't be read ({why}). Fix: name another epoch; or remove that file, and collect it again from the "
            "run's hosts: ansible-playbook train.yml -e run=NAME"
        ) from None


def _reason(error: Exception) -> str:
    """An error in one line, without the values of weights."""
    return " ".join(str(error).partition(", value=")[0].split())


@contextlib.contextmanager
def _small(path: Path) -> Iterator[None]:
    """Read a file that becomes little larger than it is, as Keras packs none: zeros of any number are a thousandth in one that is packed.

    Raises:
        ValueError: it becomes far larger.
    """
    from keras.src.saving import saving_lib

    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > max(FREE, RATIO * path.stat().st_size):
            raise ValueError(f"it is packed, and {path.stat().st_size:,} bytes become {size:,}")
    with replaced(saving_lib, "_H5_DATASET_BOMB_FLOOR_BYTES", FREE):
        yield


def begin_again(optimizer: "keras.optimizers.Optimizer") -> None:
    """Let an optimizer begin with the weights that the model has now: some keep copies of those that they were built with."""
    from trainer.keras_step.optimizer import several

    if (parts := several(optimizer)) != [optimizer]:
        for one in parts:
            begin_again(one)
        optimizer.iterations.assign(0)
        return
    fresh = type(optimizer).from_config(optimizer.get_config())
    fresh.build(optimizer._trainable_variables)
    for mine, new in zip(optimizer.variables, fresh.variables, strict=True):
        mine.assign(new.value)


def _loaded(model: "keras.Model", path: Path, skip_mismatch: bool, by_name: bool, optimizer_state: bool) -> list[str]:
    from keras.src.saving import saving_lib

    left: list[str] = []
    load_state, raise_failure = saving_lib._load_state, saving_lib._raise_loading_failure

    def fail(failures: dict[int, Any], warn_only: bool = False) -> None:
        if not warn_only:
            raise_failure(failures)
        left.extend(str(getattr(saveable, "name", type(saveable).__name__)) for saveable, _ in failures.values())

    with contextlib.ExitStack() as patched:
        patched.enter_context(replaced(saving_lib, "_raise_loading_failure", fail))
        if by_name:
            patched.enter_context(replaced(saving_lib, "_load_state", _by_name(model, load_state, left)))
        elif not optimizer_state:
            patched.enter_context(replaced(saving_lib, "_load_state", _without_optimizers(load_state)))
        saving_lib.load_weights_only(model, path, skip_mismatch=skip_mismatch)
    return list(dict.fromkeys(left))


def _without_optimizers(load_state: Callable[..., None]) -> Callable[..., None]:
    """How Keras loads the state of what a file has, but of optimizers."""
    import keras

    def load(saveable: Any, *given: Any, **more: Any) -> None:
        if not isinstance(saveable, keras.optimizers.Optimizer):
            load_state(saveable, *given, **more)

    return load


def _by_name(model: "keras.Model", load_state: Callable[..., None], left: list[str]) -> Callable[..., None]:
    """How Keras loads the state of a model, but each layer's from where the file has a layer of its name; `left`: without any."""

    def load(saveable: Any, weights_store: Any, assets_store: Any, inner_path: str, **more: Any) -> None:
        if saveable is not model:
            load_state(saveable, weights_store, assets_store, inner_path, **more)
            return
        places, layers = _places(weights_store.h5_file), [layer for layer in _layers(model) if layer.weights]
        left.extend(layer.name for layer in layers if layer.name not in places)
        if len(left) == len(layers):
            raise ValueError(f"none of its layers has the name of one in the file ({', '.join(sorted(places)[:10])})")
        for layer in layers:
            if layer.name in places:
                load_state(layer, weights_store, assets_store, places[layer.name], **more)

    return load


def _layers(model: "keras.Model") -> Iterator[Any]:
    """A model's layers, those of the models in it too."""
    import keras

    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        else:
            yield layer


def _places(file: Any) -> dict[str, str]:
    """Where the layers of a file are, by name: of several with one name, the outermost; left out if there are several of those."""
    every: dict[str, list[str]] = {}

    def visit(path: str, group: Any) -> None:
        place, _, last = path.rpartition("/")
        if last == "vars" and place and not place.startswith("optimizer") and "name" in group.attrs:
            every.setdefault(str(group.attrs["name"]), []).append(place)

    # Links, which may lead out of the file, are not followed.
    file.visititems(visit)
    depths = {name: sorted(place.count("/") for place in places) for name, places in every.items()}
    outermost = {name: min(places, key=lambda place: place.count("/")) for name, places in every.items()}
    return {name: place for name, place in outermost.items() if depths[name][:1] != depths[name][1:2]}
