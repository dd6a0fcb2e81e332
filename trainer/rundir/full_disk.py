"""Saving on a disk that may be full or fail: unneeded files are deleted, training goes on without saving, and the user is warned once."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from trainer.common.errors import LockstepError
from trainer.common.files import FULL, full, refused, shortage

BLOCK, RESERVE_BLOCKS = 4096, 32
FIX = "Fix: free some space there (old runs: ansible-playbook playbooks/delete_run.yml -e run=NAME; fewer snapshots: checkpoint.snapshots)"
OTHER_FIX = "Fix: look at that disk (df, dmesg), and at whether its folder is mounted"


class DiskFull(LockstepError):
    """A file that the run needs can't be saved."""


class Saver:
    """Writes a worker's files as long as the disk takes them."""

    def __init__(self, warn: Callable[[str], None], make_room: Callable[[], bool]):
        """Take a function for warnings, and one that frees space: true if it freed any."""
        self._warn, self._make_room = warn, make_room
        self.missing: dict[str, str] = {}
        """Parts that could not be saved, each with the reason."""

    def save(self, what: str, path: Path, needed: int | None, write: Callable[[], object]) -> bool:
        """Write a file of `needed` bytes; return whether that succeeded. Errors of `write` pass, unless they are the disk's."""
        reason = self.attempt(path, needed, write)
        self.note(what, reason)
        return not reason

    def attempt(self, path: Path, needed: int | None, write: Callable[[], object]) -> str:
        """As `save`, from any thread and without a word to the user: what is wrong with the disk, or an empty string; `note` follows."""
        reason = self._attempt(path, needed, write)
        if _is_full(reason) and self._make_room():
            reason = self._attempt(path, needed, write)
        return reason

    def note(self, what: str, reason: str) -> None:
        """Note why something is not saved or, with an empty reason, that it is."""
        if reason:
            self.lacks(what, reason)
        elif self.missing.pop(what, None) and not self.missing:
            self._warn("the disk takes files again: all is saved")

    def lacks(self, what: str, reason: str) -> None:
        """Note what is not saved; warn about the first at once."""
        if not self.missing:
            self._warn(f"{what} is not saved: {reason}. Training goes on, and the next save tries again. {_fix(reason)}")
        self.missing[what] = reason

    def check(self, needed: Sequence[str], last: str) -> None:
        """Refuse (DiskFull) to succeed without the files that a run exists for; `last` says where a resumed run starts."""
        lacking = [f"{what} is not saved: {self.missing[what]}" for what in needed if what in self.missing]
        if lacking:
            raise DiskFull(
                "\n".join([*lacking, f"{_fix(lacking[0])}, then the same command again with run=NAME of this run: it continues {last}"])
            )

    @staticmethod
    def _attempt(path: Path, needed: int | None, write: Callable[[], object]) -> str:
        try:
            write()
        except Exception as error:
            if full(error):
                return shortage(path, error, needed)
            if isinstance(error, OSError) and refused(error):
                return f"{path}: {os.strerror(error.errno or 0).lower()}"
            raise
        return ""


def _fix(reason: str) -> str:
    return FIX if _is_full(reason) else OTHER_FIX


def _is_full(reason: str) -> bool:
    return any(words.lower() in reason for words in FULL.values())


class Reserve:
    """A small file that reserves space for messages to the user when the disk is full."""

    def __init__(self, path: Path):
        self._path = path
        self.take()

    def take(self) -> None:
        """Reserve as much as there is room for."""
        with contextlib.suppress(OSError), self._path.open("wb", buffering=0) as stream:
            for _ in range(RESERVE_BLOCKS):
                stream.write(bytes(BLOCK))

    def release(self) -> None:
        """Give up the space for a message."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


class Log:
    """Standard output to a file: output is dropped while the disk does not take it."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        """Delegate everything else to the stream."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write as much as there is room for."""
        with _unless_refused():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush as far as there is room."""
        with _unless_refused():
            self._stream.flush()


@contextlib.contextmanager
def _unless_refused() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not refused(error):
            raise
