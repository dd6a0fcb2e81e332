"""Files that are complete or absent: written to a temporary name beside the target, synced, renamed."""

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FILE, FOLDER = 0o640, 0o750
"""Modes of what is written: other users of a machine must not read a run, its data or its code."""
OTHERS = 0o027
"""The umask with the same effect on new files and folders."""


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=FOLDER, exist_ok=True)


def keep_others_out() -> None:
    """Keep other users from reading anything that this process creates from now on."""
    os.umask(os.umask(OTHERS) | OTHERS)


FULL = {number: os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
"""Errors of a full disk, including quotas and file size limits."""

AWAY = (errno.ENOENT, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ETIMEDOUT)
"""Errors of a disk that fails, or of a folder whose disk or server is away: that may pass."""


def full(error: BaseException) -> str:
    """The message if an error means a full disk, else an empty string; TensorFlow and HDF5 have it only in their text."""
    if isinstance(error, OSError) and error.errno in FULL:
        return FULL[error.errno]
    return next((words for words in FULL.values() if words in str(error)), "")


def refused(error: BaseException) -> bool:
    """Return whether an error means that the disk takes no bytes now: full, read-only, failing or away. All of that may pass."""
    return bool(full(error)) or (isinstance(error, OSError) and error.errno in AWAY)


def is_read_only(path: Path) -> bool:
    """Return whether the file system of a path is read-only; False if unknown."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def shortage(path: Path, error: BaseException, needed: int | None = None) -> str:
    """Path, needed and free bytes, or the number of files where no more fit, for a user whose disk is full."""
    folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
    free, seen = _megabytes(shutil.disk_usage(folder).free), os.statvfs(folder)
    if seen.f_files and not seen.f_favail:
        return f"{path}: {full(error).lower()} for another file ({seen.f_files:,} inodes, none is free; {free} free)"
    wanted = f"{_megabytes(needed)} needed, " if needed is not None else ""
    return f"{path}: {full(error).lower()} ({wanted}{free} free)"


def _megabytes(count: int) -> str:
    """Bytes as `1,234.5 MB`."""
    return f"{count / 1e6:,.1f} MB"


@contextlib.contextmanager
def replacing(path: Path, mode: int = FILE) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it into place when the block succeeds."""
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-", suffix=path.suffix)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(mode)
        sync(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush `path` (a file or a folder) to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str, mode: int = FILE) -> None:
    """Write `text` to `path`, whole or not at all."""
    with replacing(path, mode) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, sort_keys=False, ensure_ascii=False) + "\n")


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV file with a header, whole or not at all."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, stream.getvalue())


def read_json(path: Path) -> Any:
    """Read JSON from `path`."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_secret(folder: Path) -> bytes:
    """Secret shared by the processes of a launch, read from a host's part of the run directory."""
    return bytes.fromhex((folder / "secret").read_text(encoding="ascii").strip())


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def stamp(path: Path) -> list[int]:
    """Size, mtime and ctime (ns): any write changes ctime, even if it resets mtime."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
