"""The versions of a model that are served: the newest, which is looked for again and again, and older ones on request."""

import contextlib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.serving.protocol import Arrays, BadRequest, Call
from control.serving.signature import FILE, Exported, versions
from trainer.errors import LockstepError
from trainer.terminal import printable

FUNCTION = re.compile(r"\{\{[^}]*\}\}")
"""Where in its graph TensorFlow was."""
LONGEST = 300
"""Characters of TensorFlow's words on a request."""
OLDER = 2
"""Older versions that stay in memory."""
Loader = Callable[[Path], dict[str, Call]]
"""Signatures of a version's folder, by name."""


@dataclass(frozen=True)
class Version:
    """A loaded version."""

    number: int
    exported: Exported
    signatures: dict[str, Call]


class Model:
    """A model by name. Loading takes seconds, so it is done in another thread than that which answers."""

    def __init__(self, folder: Path, loader: Loader):
        """`folder`: that of the versions; its name is the model's."""
        self.folder, self.name, self._loader = folder, folder.name, loader
        self.newest: Version | None = None
        self._older: dict[int, Version] = {}
        self._lock = threading.Lock()
        self._bad: dict[int, tuple[float, str]] = {}
        """Versions that could not be loaded: their files' time, and why."""

    def renew(self) -> str:
        """Load a newer version than is served, if there is one; the version before goes on if that fails.

        Returns:
            What happened, for the log; empty if nothing.
        """
        served = self.newest.number if self.newest else 0
        with self._lock:
            for number in reversed([one for one in versions(self.folder) if one > served]):
                if self._is_bad(number):
                    continue
                try:
                    newer = self._load(number)
                except LockstepError as error:
                    return f"{error}: {self.why(number)}"
                if self.newest:
                    self._keep(self.newest)
                self.newest = newer
                return f"version {number} is served ({newer.exported.run}, epoch {newer.exported.epoch})"
        return ""

    def version(self, number: int | None) -> Version:
        """A version, loaded if need be; LockstepError if there is none, or it can't be loaded."""
        newest = self.newest
        if newest is not None and number in (None, newest.number):
            return newest
        if number is None:
            raise LockstepError(f"no version of {self.name} is served yet")
        with self._lock:
            if number in self._older:
                return self._older[number]
            if number not in versions(self.folder) or self._is_bad(number):
                there = ", ".join(str(one) for one in versions(self.folder) if not self._is_bad(one)) or "none"
                raise LockstepError(f"Servable not found for request: Specific({self.name}, {number}); versions: {there}")
            older = self._load(number)
            self._keep(older)
            return older

    def states(self) -> dict[int, bool]:
        """Version -> whether it can be loaded, as far as is known."""
        return {number: not self._is_bad(number) for number in versions(self.folder)}

    def _load(self, number: int) -> Version:
        folder = self.folder / str(number)
        try:
            return Version(number, Exported.read(folder), self._loader(folder))
        except Exception as error:  # whatever is wrong with it, other versions go on
            self._bad[number] = _changed(folder), str(error)
            raise LockstepError(f"version {number} of {self.name} can't be loaded") from error

    def _is_bad(self, number: int) -> bool:
        """Whether a version could not be loaded, and has not changed since."""
        return number in self._bad and self._bad[number][0] == _changed(self.folder / str(number))

    def why(self, number: int) -> str:
        """Why a version could not be loaded, for the log."""
        return self._bad.get(number, (0.0, ""))[1]

    def _keep(self, version: Version) -> None:
        self._older[version.number] = version
        for number in list(self._older)[:-OLDER]:
            del self._older[number]


def _changed(folder: Path) -> float:
    """When a version's files were last written."""
    times = [0.0]
    for path in (folder, folder / FILE, folder / "saved_model.pb"):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def tensorflow_loader(folder: Path) -> dict[str, Call]:
    """A SavedModel's signatures, from arrays to arrays. Imports TensorFlow."""
    import tensorflow as tf

    from control.serving import saved_model

    def calling(signature: Any) -> Call:
        def call(arrays: Arrays) -> Arrays:
            try:
                outputs = signature(**{name: tf.constant(value) for name, value in arrays.items()})
            except tf.errors.InvalidArgumentError as error:
                # A line or an example that can't be parsed, or a number that the model's own tables do not have.
                words = FUNCTION.sub("", error.message).strip().splitlines()[0]
                raise BadRequest(printable(words, LONGEST)) from None
            return {name: output.numpy() for name, output in outputs.items()}

        return call

    return {name: calling(signature) for name, signature in saved_model.load(folder).items()}
