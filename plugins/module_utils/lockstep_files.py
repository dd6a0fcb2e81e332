"""Small text files on a host, replaced whole or not at all. Standard library only."""

import os


def read(path):
    """A file's text; empty when there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def replace(path, text):
    """Replace a file, whole or not at all, with its mode kept (0644 when it is new)."""
    mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o644
    with open(f"{path}.part", "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(f"{path}.part", mode)
    os.replace(f"{path}.part", path)
