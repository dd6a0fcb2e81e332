"""The secret by which the workers of one launch recognise each other.

It is derived on demand from a key that only this machine's user can read, so no plan, fact, argument or log contains it.
"""

import contextlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from control.common import project
from trainer.common.errors import LockstepError
from trainer.common.files import make_folder

KEY = project.PRIVATE / "key"
BYTES = 32


def of_launch(launch: str) -> str:
    """The secret of a launch in hexadecimal digits, the same for all its hosts."""
    return hmac.digest(_key(), b"launch " + launch.encode(), "sha256").hex()


def _key() -> bytes:
    """This machine's key; a new one if there is none, or if other users could read the existing one.

    Raises:
        LockstepError: the existing file is no key.
    """
    with contextlib.suppress(FileNotFoundError):
        if _closed(KEY):
            if len(key := KEY.read_bytes()) != BYTES:
                raise LockstepError(f"{KEY}: {len(key)} bytes; a key has {BYTES}. Fix: remove it; the next launch makes another")
            return key
        KEY.unlink(missing_ok=True)
    _make(KEY)
    return _key()


def _closed(path: Path) -> bool:
    """Return whether a file is regular, this user's, and closed to all other users."""
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _make(path: Path) -> None:
    """Write a key, whole or not at all; of several processes that try at once, one succeeds."""
    make_folder(path.parent)
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(handle, "wb") as stream:
            stream.write(secrets.token_bytes(BYTES))
            stream.flush()
            os.fsync(handle)
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink()
