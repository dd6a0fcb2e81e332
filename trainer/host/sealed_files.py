"""Files of training state, `step-<step>.npz`, that carry the SHA-256 of their own bytes.

An npz is a zip archive, and the digest is its trailing comment, so NumPy reads the file as usual. It detects damage (a bad disk, an
incomplete copy), not forgery: whoever can write the file can write its digest. Standard library only, and Python 3.9: the module
`worker_claim` runs this file in a host's own Python (`plugins/module_utils/lockstep_sealed.py` is a link to it).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import struct
import zipfile
from typing import IO

NAME = re.compile(r"step-(\d{1,18})\.npz")
ASIDE = "damaged"
"""Folder for damaged files, beside `state/` and `memory/`."""
MARK = b"lockstep sha256 "
DIGITS = 64
END = struct.Struct("<4s4H2LH")
"""The last record of a zip archive, without its comment."""
PIECE = 1 << 20


def seal(path: str | os.PathLike[str]) -> None:
    """Add the digest to a complete npz; OSError if it can't be written, for example on a full disk."""
    with open(path, "r+b") as stream:
        stream.seek(-END.size, os.SEEK_END)
        *record, _ = END.unpack(stream.read(END.size))
        stream.seek(-END.size, os.SEEK_END)
        stream.write(END.pack(*record, len(MARK) + DIGITS) + MARK)
        length = stream.tell()
        stream.seek(0)
        digest = _digest(stream, length)
        stream.seek(length)
        stream.write(digest)


def opened(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading, without ever waiting; OSError if it is a link, a pipe, a folder, or anything else but a file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return os.fdopen(handle, "rb")


def has_digest(path: str | os.PathLike[str]) -> bool:
    """Return whether a file carries a digest; files of older versions don't."""
    with opened(path) as stream:
        return _written(stream)[1] is not None


def damage(path: str | os.PathLike[str]) -> str:
    """Describe the damage of a file's bytes; empty if there is none. Without a digest, zip's own checksums are used."""
    try:
        with opened(path) as stream:
            length, digest = _written(stream)
            if digest is None:
                return _without_digest(stream)
            stream.seek(0)
            return "" if _digest(stream, length) == digest else "its digest differs"
    except OSError as error:
        return f"it can't be read: {error.strerror}"


def names(folder: str | os.PathLike[str]) -> list[str]:
    """Names of the states in a folder, oldest first."""
    matches = ((NAME.fullmatch(name), name) for name in (os.listdir(folder) if os.path.isdir(folder) else []))
    return [name for _, name in sorted((int(match[1]), name) for match, name in matches if match)]


def step_of(name: str) -> int:
    """The step of a state, by its name; -1 for any other text, such as the empty string for no state."""
    match = NAME.fullmatch(name)
    return int(match[1]) if match else -1


def newest_whole(folder: str | os.PathLike[str]) -> tuple[str, dict[str, str]]:
    """Name of the newest intact state in a folder (empty if there is none), and what is wrong with newer ones, by name."""
    broken: dict[str, str] = {}
    for name in reversed(names(folder)):
        reason = damage(os.path.join(folder, name))
        if not reason:
            return name, broken
        broken[name] = reason
    return "", broken


def put_aside(path: str | os.PathLike[str]) -> str:
    """Move a damaged file to where it is not taken for a state; return its new path."""
    folder, name = os.path.split(str(path))
    aside = os.path.join(os.path.dirname(folder), ASIDE)
    os.makedirs(aside, exist_ok=True)
    target = os.path.join(aside, f"{os.path.basename(folder)}-{name}")
    os.replace(path, target)
    return target


def _written(stream: IO[bytes]) -> tuple[int, bytes | None]:
    """How many bytes the digest covers, and the digest; None if the file has none."""
    size = stream.seek(0, os.SEEK_END)
    length = size - DIGITS
    if length < END.size + len(MARK):
        return size, None
    stream.seek(length - len(MARK))
    mark, digest = stream.read(len(MARK)), stream.read(DIGITS)
    return length, digest if mark == MARK else None


def _digest(stream: IO[bytes], length: int) -> bytes:
    state = hashlib.sha256()
    while length > 0:
        piece = stream.read(min(PIECE, length))
        if not piece:
            break
        state.update(piece)
        length -= len(piece)
    return state.hexdigest().encode()


def _without_digest(stream: IO[bytes]) -> str:
    try:
        with zipfile.ZipFile(stream) as archive:
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
            # A comment that is not a digest was one before the damage.
            broken = not stored or bool(archive.comment) or archive.testzip() is not None
    except Exception as error:  # Damaged headers raise nearly anything.
        return f"it is no complete file ({error})"
    return "its checksums differ" if broken else ""
