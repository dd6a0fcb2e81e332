"""Training state for an exact resume, and one snapshot of the weights an epoch.

A state is one `state/step-<step>.npz`: weights, optimizer slots and the sums of the epoch under
way, in the order in which the model creates them. Order of images and learning rate follow from
the step alone, so nothing else is needed. Only the chief writes; every worker restores.
"""

import json
import re
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from trainer.cluster import Cluster
from trainer.errors import LockstepError
from trainer.files import replacing
from trainer.rundir import snapshot_path

NAME = re.compile(r"step-(\d{9})\.npz")


@dataclass
class Progress:
    """How far a run is, and the sums of the epoch under way."""

    step: int = 0
    """Finished steps in all."""
    loss: float = 0.0
    images: float = 0.0
    correct: float = 0.0
    seconds: float = 0.0
    """Seconds spent on the epoch under way (loss, images and correct are sums over it)."""
    seconds_training: float = 0.0
    """Seconds spent training in all."""
    seconds_total: float = 0.0
    """Seconds since the launch, over all launches."""
    images_total: float = 0.0
    """Images seen in all."""
    restarts: int = 0
    """How often the run was resumed."""


class States:
    """The folder `state/` of a run."""

    def __init__(self, folder: Path, keep: int):
        self._folder, self._keep = folder, keep

    def all(self) -> list[Path]:
        """States on this disk, oldest first."""
        return sorted(path for path in self._folder.glob("step-*.npz") if NAME.fullmatch(path.name))

    def save(self, variables: list[tf.Variable], progress: Progress) -> None:
        """Write a state, then drop all but the newest `keep`."""
        arrays = {f"{index:04d}": variable.numpy() for index, variable in enumerate(variables)}
        with replacing(self._folder / f"step-{progress.step:09d}.npz") as part, part.open("wb") as stream:
            np.savez(stream, allow_pickle=False, progress=np.array(json.dumps(asdict(progress))), **arrays)
        for old in self.all()[: -self._keep]:
            old.unlink()

    def load(self, path: Path, variables: list[tf.Variable]) -> tuple[list[np.ndarray], Progress]:
        """Read a state.

        Raises:
            LockstepError: the file is damaged or of another model.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = [stored[f"{index:04d}"] for index in range(len(stored.files) - 1)]
                progress = Progress(**json.loads(str(stored["progress"])))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise LockstepError(f"{path}: a damaged training state ({error}); remove it to continue from an older one") from None
        if [array.shape for array in arrays] != [tuple(variable.shape) for variable in variables]:
            raise LockstepError(f"{path}: a training state of another model; use another run name")
        return arrays, progress


def restore(cluster: Cluster, states: States, variables: list[tf.Variable]) -> Progress:
    """Give every worker the chief's newest state, or its initial values when there is none.

    The values travel from the chief bit for bit, so workers can't start from different weights.
    """
    found = states.all() if cluster.place.is_chief else []
    arrays, progress = [variable.numpy() for variable in variables], Progress()
    if found:
        arrays, progress = states.load(found[-1], variables)
        progress.restarts += 1
    if cluster.place.workers > 1:
        arrays = _broadcast(cluster, arrays)
        progress = _broadcast_progress(cluster, progress)
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
    return progress


def _broadcast(cluster: Cluster, arrays: list[np.ndarray]) -> list[np.ndarray]:
    flat = cluster.from_chief(np.concatenate([array.astype(np.float32).ravel() for array in arrays]))
    ends = np.cumsum([array.size for array in arrays])[:-1]
    return [part.reshape(array.shape) for part, array in zip(np.split(flat, ends), arrays, strict=True)]


def _broadcast_progress(cluster: Cluster, progress: Progress) -> Progress:
    """Float64 values as pairs of int32, exactly."""
    bits = np.array(list(asdict(progress).values()), np.float64).view(np.int32)
    values = cluster.sum(bits if cluster.place.is_chief else np.zeros_like(bits)).view(np.float64)
    kinds = {name: type(default) for name, default in asdict(Progress()).items()}
    return Progress(**{name: kind(value) for (name, kind), value in zip(kinds.items(), values, strict=True)})


def save_snapshot(model: keras.Model, run: Path, epoch: int) -> None:
    """Write the model and its weights as `.keras`."""
    with replacing(snapshot_path(run, epoch)) as part:
        model.save(part)
