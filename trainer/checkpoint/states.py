"""Training state for an exact resume, and one snapshot of the weights per epoch.

A state is one `state/step-<step>.npz`: weights, optimizer slots and the sums of the current epoch. The order of images and the
learning rate follow from the step alone. The chief writes it, rank 1 a copy; every worker restores (`trainer.checkpoint.resume`).

A reduction may have its own memory on each worker (what PowerSGD has not sent yet). Each worker writes its part,
`workers/<host>/memory/step-<step>.npz`, while the chief writes the state (`trainer.checkpoint.background_save`). Parts and state belong
together only if the same attempt wrote them: a worker that was away for a while may hold an older part for the same step.

Each file carries its digest (`trainer.host.sealed_files`). A damaged one is moved to `damaged/`, and the newest intact state is used
instead.
"""

import contextlib
import errno
import functools
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.common.errors import LockstepError
from trainer.common.files import AWAY, replacing, sync
from trainer.host import sealed_files
from trainer.network.member import Member
from trainer.rundir.layout import snapshot_path

if TYPE_CHECKING:
    import keras

FEWEST_MEMORIES = 2
"""A state may be gone before all parts of the next one are written, so the previous parts stay."""
DAMAGED = OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, struct.error, zipfile.BadZipFile
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""How NumPy reads the header of an array, by the version of its format."""


@dataclass
class Progress:
    """A run's progress, and the sums of the current epoch."""

    step: int = 0
    """Finished steps in total."""
    metrics: list[float] = field(default_factory=list)
    """States of the model's metrics, summed over the current epoch, as are `images` and `seconds`; empty before its first step."""
    images: float = 0.0
    seconds: float = 0.0
    seconds_training: float = 0.0
    seconds_total: float = 0.0
    """Seconds since the launch, over all launches."""
    images_total: float = 0.0
    restarts: int = 0
    method: str | None = None
    """Name of the reduction that the run began with, if several workers train."""
    shares: list[int] | None = None
    """Each worker's share of a step, by rank, if measured."""
    attempt: str = ""
    """Name of the attempt that wrote this; every start of the workers is an attempt."""
    hosts: list[str] | None = None
    """The workers of that attempt by rank, without ports."""
    callbacks: list[dict[str, Any]] = field(default_factory=list)
    """States of the user's callbacks, in order."""
    ended: bool = False
    """True if a callback has ended the training."""
    ended_by: str = ""
    """That callback, if it is the chief's."""
    finished: bool = False
    """True if the end of training has changed the weights: a moving average took their place."""
    restored: str = ""
    """The callback that gave the model other weights at the end of the training, if one did."""
    digests: list[str] = field(default_factory=list)
    """Digests of the weights and all else that training changes, by rank: equal when the state was saved."""
    inexact: list[str] = field(default_factory=list)
    """Why the weights are not bit for bit those of an uninterrupted run; empty while they are."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Rows of history.csv, which is on the chief's disk only."""


class StateFiles:
    """The files `step-<step>.npz` in a folder; each is checked when it is first read."""

    def __init__(self, folder: Path, keep: int, warn: Callable[[str], None]):
        self._folder, self._keep, self._warn = folder, keep, warn
        self._whole: dict[Path, bool] = {}
        self.damaged: list[int] = []
        """Steps whose files were damaged, and are put aside."""

    def path(self, step: int) -> Path:
        """Path of a step's file, whether or not it exists."""
        return self._folder / f"step-{step:09d}.npz"

    def steps(self) -> list[int]:
        """Steps of the existing files, oldest first."""
        return [sealed_files.step_of(name) for name in sealed_files.names(self._folder)]

    def read(self, step: int, use: Callable[[Any], Any]) -> Any:
        """The result of `use` on the open file of a step; None if there is none, or if it is damaged and put aside."""
        path = self.path(step)
        if not os.path.lexists(path) or not self._is_whole(step):
            return None
        try:
            with sealed_files.opened(path) as stream, np.load(stream, allow_pickle=False) as stored:
                _check_lengths(stored.zip, os.fstat(stream.fileno()).st_size)
                return use(stored)
        except DAMAGED as error:
            self._put_aside(step, str(error))
            return None

    def write(self, step: int, arrays: Sequence[np.ndarray], **description: Any) -> None:
        """Write a file with arrays and values that describe them."""
        numbered = {f"{index:04d}": array for index, array in enumerate(arrays)}
        with replacing(self.path(step)) as part:
            with part.open("wb") as stream:
                np.savez(stream, allow_pickle=False, **{name: np.array(value) for name, value in description.items()}, **numbered)
            sealed_files.seal(part)
        # Older ones are deleted next: without this, a power cut could bring back neither.
        sync(self._folder)
        self._whole[self.path(step)] = True

    def tidy(self, step: int) -> None:
        """Delete all but the newest up to a step, and all later ones: they belong to an attempt that was not continued."""
        steps = self.steps()
        before = [number for number in steps if number <= step]
        for number in set(steps) - set(before[-self._keep :]):
            self.drop(number)

    def drop(self, step: int) -> None:
        """Delete the file of a step, if there is one."""
        _delete(self.path(step))

    def clear(self) -> None:
        """Delete unfinished files: whoever wrote them was killed."""
        for path in self._unfinished():
            path.unlink(missing_ok=True)

    def free(self, last: int) -> bool:
        """Delete what a run does not need: damaged and unfinished files, and all but the newest intact one up to a step."""
        needless = [*self._unfinished(), *self._folder.parent.glob(f"{sealed_files.ASIDE}/{self._folder.name}-*")]
        steps = [step for step in self.steps() if step <= last]
        newest = next((step for step in reversed(steps) if not sealed_files.damage(self.path(step))), None)
        if newest is not None:
            needless += [self.path(step) for step in steps if step != newest]
        return sum(_delete(path) for path in needless) > 0

    def _unfinished(self) -> list[Path]:
        return list(self._folder.glob(".part-*"))

    def _is_whole(self, step: int) -> bool:
        path = self.path(step)
        if path not in self._whole:
            reason = sealed_files.damage(path)
            self._whole[path] = not reason
            if reason:
                self._put_aside(step, reason)
            elif not sealed_files.has_digest(path):
                print(f"{path}: without a digest, as older versions wrote it; its checksums are right", flush=True)
        return self._whole[path]

    def _put_aside(self, step: int, reason: str) -> None:
        path = self.path(step)
        self._whole[path] = False
        self.damaged.append(step)
        location = "where it is"
        with contextlib.suppress(OSError):
            location = f"as {sealed_files.put_aside(path)}"
        self._warn(f"{path} is damaged ({reason}): left out, and kept {location}")


class States:
    """The folder `state/` of a run."""

    def __init__(self, folder: Path, keep: int, warn: Callable[[str], None] = print):
        self.files = StateFiles(folder, keep, warn)

    def write(self, arrays: Sequence[np.ndarray], progress: Progress) -> None:
        """Write a state; older ones stay until `files.tidy`."""
        self.files.write(progress.step, arrays, progress=np.frombuffer(json.dumps(vars(progress)).encode(), np.uint8))

    def readable(self) -> Iterator[tuple[int, Progress]]:
        """Step and progress of the readable states on this disk, newest first."""
        for step in reversed(self.files.steps()):
            progress = self.files.read(step, functools.partial(_progress, step))
            if progress is not None:
                yield step, progress

    def load(self, step: int, variables: Sequence[Any]) -> tuple[list[np.ndarray], Progress]:
        """Read the state of a step, one of `readable`; LockstepError if it is of another model, or was damaged in the meantime."""
        path = self.files.path(step)
        loaded: tuple[list[np.ndarray], Progress] | None = self.files.read(step, lambda stored: (_arrays(stored), _progress(step, stored)))
        if loaded is None:
            raise LockstepError(f"{path}: this training state can't be read; the same command again continues from another one")
        if [array.shape for array in loaded[0]] != [tuple(variable.shape) for variable in variables]:
            raise LockstepError(f"{path}: a training state of another model; use another run name")
        return loaded


class Memories:
    """The memory of this worker's reduction, in its own folder."""

    def __init__(self, folder: Path, member: Member, keep: int, memory: Sequence[Any], warn: Callable[[str], None] = print):
        self.files = StateFiles(folder, max(keep, FEWEST_MEMORIES), warn)
        self._member, self.memory, self.warn = member, memory, warn
        self.first = [array.numpy() for array in memory]
        """The initial values."""

    def has(self, step: int, attempt: str) -> bool:
        """Return whether the part of a step, saved by an attempt, is on this disk."""
        return bool(self._open(step, attempt, lambda _: True))

    def write(self, step: int, attempt: str, arrays: Sequence[np.ndarray]) -> None:
        """Write the memory as it was after a step; older parts stay until `files.tidy`."""
        self.files.write(step, arrays, about=self._about(attempt))

    def load(self, step: int, attempt: str) -> bool:
        """Load the memory of a step; False, with nothing changed, if there is none of this attempt, number of workers and reduction."""
        arrays: list[np.ndarray] | None = self._open(step, attempt, _arrays)
        if arrays is not None:
            self.assign(arrays)
        return arrays is not None

    def _about(self, attempt: str) -> str:
        return json.dumps([attempt, self._member.workers, [array.shape for array in self.memory]])

    def _open(self, step: int, attempt: str, use: Callable[[Any], Any]) -> Any:
        """The result of `use` on the file of a step; None if none matches."""

        def fitting(stored: Any) -> Any:
            return use(stored) if str(stored["about"]) == self._about(attempt) else None

        return self.files.read(step, fitting)

    def assign(self, arrays: Sequence[np.ndarray]) -> None:
        """Overwrite the memory."""
        for array, values in zip(self.memory, arrays, strict=True):
            array.assign(values)


def _delete(path: Path) -> bool:
    """Delete a file; whether there was one. A folder of its name stays: it was not written here, and is in nobody's way.

    So does what lies on a disk that is read-only or away.
    """
    try:
        path.unlink()
    except OSError as error:
        if error.errno not in (*AWAY, errno.EISDIR):
            raise
        return False
    return True


def _check_lengths(archive: zipfile.ZipFile, size: int) -> None:
    """Refuse (ValueError) arrays that announce more than a file of `size` bytes holds: memory would be reserved for all of it."""
    for entry in archive.infolist():
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > size:
            raise ValueError(f"its entry {entry.filename:.40} announces {entry.file_size:,} bytes")
        with archive.open(entry) as stream:
            shape, _, dtype = HEADERS[np.lib.format.read_magic(stream)](stream)
            if math.prod(shape) * dtype.itemsize != entry.file_size - stream.tell():
                raise ValueError(f"its entry {entry.filename:.40} announces an array of shape {shape}, which it does not hold")


def _arrays(stored: Any) -> list[np.ndarray]:
    """The arrays of an open file; it has one more entry, which describes them."""
    return [stored[f"{index:04d}"] for index in range(len(stored.files) - 1)]


def _progress(step: int, stored: Any) -> Progress:
    progress = Progress(**json.loads(stored["progress"].tobytes()))
    if progress.step != step:
        raise ValueError(f"it is of step {progress.step}")
    return progress


def save_snapshot(model: "keras.Model", run: Path, epoch: int) -> None:
    """Write the model and its weights as `.keras`."""
    with replacing(snapshot_path(run, epoch)) as part:
        model.save(part)
