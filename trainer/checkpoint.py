"""Training state for an exact resume, and one snapshot of the weights an epoch.

A state is one `state/step-<step>.npz`: weights, optimizer slots and the sums of the epoch under
way, in the order in which the model creates them. Order of images and learning rate follow from
the step alone, so nothing else is needed. Only the chief writes; every worker restores.

A reduction may remember something of its own on each worker (what PowerSGD has not sent yet): each
writes its part, `workers/<host>/memory/step-<step>.npz`, before the chief writes the state. Parts and
state belong together when the same attempt wrote them: a worker that was away for a while may hold
a part of the same step from before.
"""

import json
import re
import secrets
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.cluster import Cluster, Place
from trainer.errors import LockstepError
from trainer.files import replacing
from trainer.reduction import Memory
from trainer.rundir import snapshot_path

NAME = re.compile(r"step-(\d{9})\.npz")
RECENT = 64
"""How many of its newest states a worker tells the others of."""
FEWEST_MEMORIES = 2
"""Parts of a state are there before the state: until then they, too, need the ones before."""
DAMAGED = OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile


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
    method: str | None = None
    """Name of the reduction that several workers began with."""
    shares: list[int] | None = None
    """Each worker's share of a step, by rank, where they were measured."""
    attempt: str = ""
    """Name of the attempt that this is of: every start of the workers is one."""
    hosts: list[str] | None = None
    """The workers of that attempt by rank, without ports."""


class States:
    """The folder `state/` of a run."""

    def __init__(self, folder: Path, keep: int):
        self._folder, self._keep = folder, keep

    def all(self) -> list[Path]:
        """States on this disk, oldest first."""
        return list(self.by_step().values())

    def by_step(self) -> dict[int, Path]:
        """The same by their steps."""
        return _files(self._folder)

    def save(self, variables: list[tf.Variable], progress: Progress) -> None:
        """Write a state, then drop all but the newest `keep`."""
        _write(self._folder, self._keep, progress.step, variables, progress=json.dumps(asdict(progress)))

    def newest(self) -> Progress | None:
        """How far the newest state is; None without any, or where it can't be read."""
        paths = self.all()
        return _readable(paths[-1]) if paths else None

    def saved(self) -> dict[int, Progress | None]:
        """How far each state on this disk is, by its step, oldest first; None for one that can't be read."""
        return {step: _readable(path) for step, path in self.by_step().items()}

    def load(self, path: Path, variables: list[tf.Variable]) -> tuple[list[np.ndarray], Progress]:
        """Read a state.

        Raises:
            LockstepError: the file is damaged or of another model.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays, progress = _arrays(stored), _progress(stored)
        except DAMAGED as error:
            raise LockstepError(f"{path}: a damaged training state ({error}); remove it to continue from an older one") from None
        if [array.shape for array in arrays] != [tuple(variable.shape) for variable in variables]:
            raise LockstepError(f"{path}: a training state of another model; use another run name")
        return arrays, progress


class Memories:
    """What this worker's reduction remembers, in a folder of its own."""

    def __init__(self, folder: Path, place: Place, keep: int, memory: Sequence[Memory]):
        self._folder, self._place, self._keep = folder, place, max(keep, FEWEST_MEMORIES)
        self.memory = memory
        self._first = [array.numpy() for array in memory]

    def steps(self, attempts: Mapping[int, str]) -> list[int]:
        """Of states, given by step with the attempt that saved them, those whose part is on this disk, oldest first.

        Raises:
            LockstepError: a file is damaged.
        """
        return [step for step in sorted(attempts) if self._open(step, attempts[step], lambda _: True)]

    def save(self, step: int, attempt: str) -> None:
        """Write the memory after a step, then drop all but the newest."""
        if self.memory:
            _write(self._folder, self._keep, step, self.memory, about=self._about(attempt))

    def load(self, step: int, attempt: str) -> bool:
        """Take up the memory of a step; False, and nothing is changed, where there is none that fits.

        It is to be of this attempt, this number of workers and this reduction.

        Raises:
            LockstepError: the file is damaged.
        """
        arrays: list[np.ndarray] | None = self._open(step, attempt, _arrays)
        if arrays is not None:
            self.assign(arrays)
        return arrays is not None

    def _about(self, attempt: str) -> str:
        return json.dumps([attempt, self._place.workers, [array.shape for array in self.memory]])

    def _open(self, step: int, attempt: str, read: Callable[[Any], Any]) -> Any:
        """What `read` makes of the file of a step; None where there is none that fits."""
        path = _files(self._folder).get(step)
        if path is None:
            return None
        try:
            with np.load(path, allow_pickle=False) as stored:
                # Without `about` it is of a version that did not know attempts.
                about = str(stored["about"]) if "about" in stored.files else ""
                return read(stored) if about == self._about(attempt) else None
        except DAMAGED as error:
            raise LockstepError(f"{path}: a damaged part of a training state ({error}); remove it to go on without") from None

    def clear(self) -> None:
        """As at the start of a run."""
        self.assign(self._first)

    def assign(self, arrays: Sequence[np.ndarray]) -> None:
        """Overwrite the memory."""
        for array, values in zip(self.memory, arrays, strict=True):
            array.assign(values)


def _files(folder: Path) -> dict[int, Path]:
    """Files of states in a folder by their steps, oldest first."""
    found = ((NAME.fullmatch(path.name), path) for path in sorted(folder.glob("step-*.npz")))
    return {int(match[1]): path for match, path in found if match}


def _write(folder: Path, keep: int, step: int, arrays: Sequence[Any], **about: Any) -> None:
    """Write a file with arrays and what is to be known of them, then drop all but the newest `keep`.

    Files of later steps go, too: they are of an attempt from whose states nobody goes on.
    """
    numbered = {f"{index:04d}": array.numpy() for index, array in enumerate(arrays)}
    with replacing(folder / f"step-{step:09d}.npz") as part, part.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **{name: np.array(value) for name, value in about.items()}, **numbered)
    files = _files(folder)
    before = [number for number in files if number <= step]
    for number in set(files) - set(before[-keep:]):
        files[number].unlink()


def _arrays(stored: Any) -> list[np.ndarray]:
    """The arrays of an open file; beside them is one entry about them."""
    return [stored[f"{index:04d}"] for index in range(len(stored.files) - 1)]


def _progress(stored: Any) -> Progress:
    return Progress(**json.loads(str(stored["progress"])))


def _readable(path: Path) -> Progress | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return _progress(stored)
    except DAMAGED:
        return None  # load() tells of it


def restore(cluster: Cluster, states: States, variables: list[tf.Variable], memories: Memories) -> Progress:
    """Give every worker the chief's newest state, or its initial values when there is none.

    The values travel from the chief bit for bit, so workers can't start from different weights. A
    reduction's memory is each worker's own. Where these same workers saved the chief's newest state,
    and one has lost its part, an older state for which all have theirs is taken; without any, or where
    others trained in between, the memory starts anew.
    """
    saved = states.saved() if cluster.place.is_chief else {}
    step = _common(cluster, saved, memories) if memories.memory else max(saved, default=-1)
    arrays, progress = [variable.numpy() for variable in variables], Progress()
    if saved:
        arrays, progress = states.load(states.by_step()[step], variables)
        progress.restarts += 1
    if cluster.place.workers > 1:
        arrays = _broadcast(cluster, arrays)
        progress = _broadcast_progress(cluster, progress)
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
    _recall(cluster, memories, progress)
    progress.attempt, progress.hosts = cluster.text_from_chief(secrets.token_hex(8)), cluster.place.hosts
    return progress


def _common(cluster: Cluster, saved: Mapping[int, Progress | None], memories: Memories) -> int:
    """The newest of the chief's steps for which all workers have their memory, else the chief's newest; -1 without any."""
    newest = max(saved, default=-1)
    last = saved.get(newest)
    again = last is not None and last.hosts == cluster.place.hosts
    usable = {step: progress.attempt for step, progress in saved.items() if progress is not None and (again or step == newest)}
    told: dict[str, str] = json.loads(cluster.text_from_chief(json.dumps(usable)))
    table = np.full((cluster.place.workers, RECENT), -1, np.int32)
    steps = memories.steps({int(step): attempt for step, attempt in told.items()})[-RECENT:]
    table[cluster.place.rank, : len(steps)] = steps
    table = cluster.gather(table)
    common = set.intersection(*(set(row[row >= 0].tolist()) for row in table))
    return max(common, default=newest)


def _recall(cluster: Cluster, memories: Memories, progress: Progress) -> None:
    if not memories.memory or not progress.step:
        return
    loaded = memories.load(progress.step, progress.attempt)
    if cluster.sum(np.array([loaded], np.int32))[0] < cluster.place.workers:
        memories.clear()
        if cluster.place.is_chief:
            print("not all workers have what the reduction remembered; it starts anew, and the weights end a little different", flush=True)


def _broadcast(cluster: Cluster, arrays: list[np.ndarray]) -> list[np.ndarray]:
    flat = cluster.from_chief(np.concatenate([array.astype(np.float32).ravel() for array in arrays]))
    ends = np.cumsum([array.size for array in arrays])[:-1]
    return [part.reshape(array.shape).astype(array.dtype) for part, array in zip(np.split(flat, ends), arrays, strict=True)]


def newest_progress(cluster: Cluster, states: States) -> Progress:
    """How far the chief's newest state is, on every worker; a fresh one where there is none."""
    progress = states.newest() if cluster.place.is_chief else None
    return _broadcast_progress(cluster, progress or Progress())


def _broadcast_progress(cluster: Cluster, progress: Progress) -> Progress:
    """As JSON, which gives every float back as it was."""
    return Progress(**json.loads(cluster.text_from_chief(json.dumps(asdict(progress)))))


def save_snapshot(model: keras.Model, run: Path, epoch: int) -> None:
    """Write the model and its weights as `.keras`."""
    with replacing(snapshot_path(run, epoch)) as part:
        model.save(part)
