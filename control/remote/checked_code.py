"""Run published code on a host: a copy on its own disk that matches the control node's digest.

Anyone who can write to the shared folder must not decide what runs here. So this program comes with the start script, never from that
folder (`python -c`, see `command`). It uses the copy of an earlier start, or reads the archive once, compares it, and writes the bytes
that it compared: later changes have no effect. Standard library only.
"""

import hashlib
import os
import sys
from collections.abc import Sequence

LARGEST = 64 * 2**20
"""Bytes; no archive of ours is nearly as large, and a foreign one must not fill the memory."""


def content(path: str) -> bytes | None:
    """A file's bytes, up to the largest size of an archive; None if there is no file."""
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as stream:
        return stream.read(LARGEST)


def digest(data: bytes | None) -> str:
    """Hex SHA-256; empty if there is no file."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


def copy(shared: str, sha256: str, own: str) -> None:
    """Put a verified copy of the shared archive on this host's disk, whole or not at all; on failure, exit with a message."""
    data = content(shared)
    if data is None:
        sys.exit(f"error: {shared}: no such file. Fix: run the same command again; it sends the code again")
    if digest(data) != sha256:
        sys.exit(
            f"error: {shared} has SHA-256 {digest(data)[:16]}..., and {sha256[:16]}... was published; it is not run: somebody else wrote "
            "it. Fix: run the same command again; it sends the code again; and see who can write that folder"
        )
    os.makedirs(os.path.dirname(own), exist_ok=True)
    # Another worker on this host may make its copy at the same time.
    part = f"{own}.{os.getpid()}.part"
    with open(part, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, own)


def main(shared: str, sha256: str, own: str, arguments: Sequence[str]) -> None:
    """Become Python with the copy first on its module path, and without the working directory."""
    try:
        if digest(content(own)) != sha256:
            copy(shared, sha256, own)
    except OSError as error:
        sys.exit(f"error: {error.filename or own}: {error.strerror}")
    environment = {**os.environ, "PYTHONPATH": own, "PYTHONSAFEPATH": "1"}
    os.execve(sys.executable, [sys.executable, *arguments], environment)  # noqa: S606 - nothing here is for a shell


def command(python: str, code: str, sha256: str, caches: str, arguments: Sequence[object] = ()) -> list[str]:
    """The command line on a host that runs `code`.

    Args:
        python: the host's interpreter.
        code: the archive on the shared folder.
        sha256: the archive's full digest, as the control node knows it.
        caches: folder on the host's own disk for the copy.
        arguments: Python's arguments (`-m trainer ...`); they may also follow on the line.
    """
    with open(__file__, encoding="utf-8") as stream:
        source = stream.read()
    return [python, "-I", "-S", "-c", source, code, sha256, os.path.join(caches, "code", os.path.basename(code)), *map(str, arguments)]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
