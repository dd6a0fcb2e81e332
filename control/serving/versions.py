"""The versions of a model that are served: those on disk, as they are there now. The newest is loaded, older ones on request."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from control.serving.protocol import Call
from control.serving.signature import ExportedModel, VersionFolder
from trainer.common.errors import LockstepError
from trainer.common.safe_text import printable

LONGEST = 300
"""Characters of TensorFlow's words."""
OLDER = 2
"""Older versions that stay in memory."""
Loader = Callable[[Path], dict[str, Call]]
"""Signatures of a version's folder, by name."""
Identity = tuple[tuple[str, int, int, int], ...]
"""Identity of a version's files: path, inode, size, and time of the last change in ns."""


@dataclass(frozen=True)
class Version:
    """A loaded version."""

    number: int
    exported: ExportedModel
    signatures: dict[str, Call]
    identity: Identity
    """Identity of the loaded files."""


class Model:
    """A model by name. Loading takes seconds, so it is done in another thread than that which answers."""

    def __init__(self, folder: Path, loader: Loader):
        """`folder`: that of the versions; its name is the model's."""
        self.folder, self.name, self._loader = folder, folder.name, loader
        self.newest: Version | None = None
        self._older: dict[int, Version] = {}
        self._lock = threading.Lock()
        self._bad: dict[int, tuple[Identity, str]] = {}
        """Versions that could not be loaded: their files, and why."""
        self._news: list[str] = []
        """For the log."""

    def renew(self) -> str:
        """Serve the newest version on disk that can be loaded, and forget versions that are no longer there as they were loaded.

        Returns:
            What changed, for the log; empty if nothing did.
        """
        with self._lock:
            self._renew()
            news, self._news = self._news, []
            return "; ".join(news)

    def _renew(self) -> None:
        self._forget()
        served = self.newest.number if self.newest else 0
        for number in reversed([one for one in VersionFolder(self.folder).numbers if one > served]):
            if self._is_bad(number):
                continue
            try:
                newer = self._older.pop(number, None) or self._load(number)
            except LockstepError as error:
                self._news.append(str(error))
                continue
            if self.newest:
                self._keep(self.newest)
            self.newest = newer
            self._news.append(f"version {number} is served ({newer.exported.run}, epoch {newer.exported.epoch})")
            return

    def _forget(self) -> None:
        """Drop loaded versions that were withdrawn or replaced."""
        self._older = {number: version for number, version in self._older.items() if self._is_current(version)}
        if self.newest is not None and not self._is_current(self.newest):
            is_there = (self.folder / str(self.newest.number)).is_dir()
            self._news.append(f"version {self.newest.number} was {'replaced on disk' if is_there else 'withdrawn'}")
            self.newest = None

    def current(self, number: int | None) -> Version | None:
        """The newest version, if it is asked for and is on disk as it was loaded. Quick."""
        newest = self.newest
        return newest if newest is not None and number in (None, newest.number) and self._is_current(newest) else None

    def version(self, number: int | None) -> Version:
        """A version, loaded if need be; LockstepError if there is none, or it can't be loaded."""
        with self._lock:
            self._renew()
            if number is None:
                if self.newest is None:
                    raise LockstepError(f"Servable not found for request: Latest({self.name}); {self._there()}")
                return self.newest
            if self.newest is not None and number == self.newest.number:
                return self.newest
            if number in self._older:
                return self._older[number]
            if number not in VersionFolder(self.folder).numbers or self._is_bad(number):
                raise LockstepError(f"Servable not found for request: Specific({self.name}, {number}); {self._there()}")
            older = self._load(number)
            self._keep(older)
            return older

    def states(self) -> dict[int, str]:
        """Version -> why it can't be loaded, as far as is known; empty if it can."""
        with self._lock:
            return {number: self._bad[number][1] if self._is_bad(number) else "" for number in VersionFolder(self.folder).numbers}

    def _there(self) -> str:
        every = VersionFolder(self.folder).numbers
        bad = "".join(f"; version {number}: {self._bad[number][1]}" for number in every if self._is_bad(number))
        return f"versions: {', '.join(str(one) for one in every if not self._is_bad(one)) or 'none'}{bad}"

    def _load(self, number: int) -> Version:
        folder = self.folder / str(number)
        before = _identity(folder)
        try:
            exported, signatures = ExportedModel.read(folder), self._loader(folder)
            if missing := sorted({*exported.signatures} - {*signatures}):
                raise LockstepError(f"its lockstep.json names the signature {missing[0]}, which its model lacks; export it again")
        except Exception as error:  # whatever is wrong with it, other versions go on
            why = printable(str(error).replace(f"{folder}/", "").replace(str(folder), str(number)).splitlines()[0], LONGEST)
            self._bad[number] = before, f"it can't be loaded: {why}"
            raise LockstepError(f"version {number} of {self.name} can't be loaded: {why}") from None
        if _identity(folder) != before:
            raise LockstepError(f"version {number} of {self.name} is being written; try again later")
        return Version(number, exported, signatures, before)

    def _is_bad(self, number: int) -> bool:
        """Return whether a version could not be loaded, and has not changed since."""
        return number in self._bad and self._bad[number][0] == _identity(self.folder / str(number))

    def _is_current(self, version: Version) -> bool:
        return version.identity == _identity(self.folder / str(version.number))

    def _keep(self, version: Version) -> None:
        self._older[version.number] = version
        for number in list(self._older)[:-OLDER]:
            del self._older[number]


def _identity(folder: Path) -> Identity:
    """Identity of a version's files, which changes with each of them; empty if there is no such folder."""
    found = []
    for path, _, names in os.walk(folder):
        for name in (*names, "."):
            try:
                state = os.stat(os.path.join(path, name))
            except OSError:
                continue
            found.append((os.path.join(path, name), state.st_ino, state.st_size, state.st_ctime_ns))
    return tuple(sorted(found))
