"""Files that are complete or absent: written beside their place, synced, renamed."""

import contextlib
import csv
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it into place when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-", suffix=path.suffix)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o644)
        sync(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Ask the kernel to write `path` (a file or a folder) to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all."""
    with replacing(path) as part:
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


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
