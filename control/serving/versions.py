"""The versions of a model that are served: the newest, which is looked for again and again, and older ones on request."""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.serving.protocol import Arrays, BadRequest
from control.serving.signature import Exported, versions
from trainer.errors import LockstepError
from trainer.terminal import printable

FUNCTION = re.compile(r"\{\{[^}]*\}\}")
"""Where in its graph TensorFlow was."""
LONGEST = 300
"""Characters of TensorFlow's words on a request."""
OLDER = 2
"""Older versions that stay in memory."""
Loader = Callable[[Path], dict[str, Callable[[Arrays], Arrays]]]
"""Signatures of a version's folder, by name."""


@dataclass(frozen=True)
class Version:
    """A loaded version."""

    number: int
    exported: Exported
    signatures: dict[str, Callable[[Arrays], Arrays]]


class Model:
    """A model by name. Loading takes seconds, so it is done in another thread than that which answers."""

    def __init__(self, folder: Path, loader: Loader):
        """`folder`: that of the versions; its name is the model's."""
        self.folder, self.name, self._loader = folder, folder.name, loader
        self.newest: Version | None = None
        self._older: dict[int, Version] = {}
        self._lock = threading.Lock()
        self._bad: dict[int, str] = {}

    def renew(self) -> str:
        """Load a newer version than is served, if there is one; the version before goes on if that fails.

        Returns:
            What happened, for the log; empty if nothing.
        """
        served = self.newest.number if self.newest else 0
        for number in reversed([one for one in versions(self.folder) if one > served]):
            if number in self._bad:
                continue
            try:
                newer = self._load(number)
            except Exception as error:  # whatever is wrong with it, the version before goes on
                self._bad[number] = str(error)
                return f"version {number} can't be loaded: {error}"
            if self.newest:
                self._keep(self.newest)
            self.newest = newer
            return f"version {number} is served ({newer.exported.run}, epoch {newer.exported.epoch})"
        return ""

    def version(self, number: int | None) -> Version:
        """A version, loaded if need be; LockstepError if there is none."""
        newest = self.newest
        if newest is not None and number in (None, newest.number):
            return newest
        with self._lock:
            if number in self._older:
                return self._older[number]
            if number is None:
                raise LockstepError(f"no version of {self.name} is served yet")
            if number not in versions(self.folder):
                there = ", ".join(map(str, versions(self.folder))) or "none"
                raise LockstepError(f"Servable not found for request: Specific({self.name}, {number}); versions: {there}")
            older = self._load(number)
            self._keep(older)
            return older

    def states(self) -> dict[int, str]:
        """Version -> why it can't be loaded, or an empty text; those that could be loaded, too."""
        return {number: self._bad.get(number, "") for number in versions(self.folder)}

    def _load(self, number: int) -> Version:
        folder = self.folder / str(number)
        return Version(number, Exported.read(folder), self._loader(folder))

    def _keep(self, version: Version) -> None:
        self._older[version.number] = version
        for number in list(self._older)[:-OLDER]:
            del self._older[number]


def tensorflow_loader(folder: Path) -> dict[str, Callable[[Arrays], Arrays]]:
    """A SavedModel's signatures, from arrays to arrays. Imports TensorFlow."""
    import tensorflow as tf

    from control.serving import saved_model

    def calling(signature: Any) -> Callable[[Arrays], Arrays]:
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
