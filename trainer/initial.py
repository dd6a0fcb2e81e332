"""Weights that a training starts from: a file of another training, such as a snapshot."""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import LockstepError
from trainer.files import sha256_file

if TYPE_CHECKING:
    import keras

SUFFIXES = (".weights.h5", ".keras")


def suffix(name: str) -> str:
    """Which of `SUFFIXES` a file's name has; empty if none."""
    return next((one for one in SUFFIXES if name.endswith(one)), "")


def load(model: "keras.Model", path: Path, given: dict[str, str], skip_mismatch: bool) -> None:
    """Load a file's weights into a model with the same layers, by Keras' `load_weights`.

    Args:
        model: built.
        path: the file, which others may write to.
        given: `train.weights`: the file's name and its SHA-256.
        skip_mismatch: leave layers as they are whose weights have other shapes or are not in the file.

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
            model.load_weights(own, skip_mismatch=skip_mismatch)
        except (ValueError, KeyError, OSError) as error:
            # Without the values of the weights.
            reason = " ".join(str(error).partition(", value=")[0].replace(str(own), given["file"]).split())
            raise LockstepError(
                f"weights={given['file']}: they don't fit the model: {reason:.400}. Fix: give weights of a model with the same layers, or "
                "leave out what does not fit: -e set=train.skip_mismatch=true"
            ) from None
