"""Small text files on a host, replaced whole or not at all. Standard library only."""

import json
import os
import tempfile

# Other users of a host must not access a run.
OTHERS = 0o027


def read(path):
    """A file's text; empty if there is none."""
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def replace(path, text, new=0o644):
    """Replace a file, whole or not at all, keeping its mode; `new` is the mode of a new file."""
    mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else new
    handle, part = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".part-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(part, mode)
        os.replace(part, path)
    except OSError:
        os.unlink(part)
        raise


def parsed(path):
    """Content of a JSON file; None if the file is missing or torn."""
    try:
        return json.loads(read(path))
    except ValueError:
        return None


class Record:
    """A module's record of its changes to this host, in a JSON file."""

    def __init__(self, path):
        self.path = path

    def read(self):
        """The content; an empty dict if there is none."""
        return json.loads(read(self.path) or "{}")

    def write(self, content):
        """Replace the content, whole or not at all."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        replace(self.path, json.dumps(content, indent=1))

    def remove(self):
        """Remove the file, and its folder if nothing else is in it."""
        os.unlink(self.path)
        remove_if_empty(os.path.dirname(self.path))


def names(folder):
    """Names in a folder, in order; none if there is no folder."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def remove_if_empty(folder):
    """Remove a folder that is there and empty."""
    if os.path.isdir(folder) and not os.listdir(folder):
        os.rmdir(folder)


def differs(file):
    """Return whether a file (a dict with `path` and `content`) is missing or has other content."""
    return not os.path.isfile(file["path"]) or read(file["path"]) != file["content"]


def write(module, file):
    """Write a file (a dict with `path`, `content` and perhaps `mode`), unless it is there."""
    mode = int(str(file.get("mode", "0640")), 8)
    try:
        if differs(file):
            os.makedirs(os.path.dirname(file["path"]), exist_ok=True)
            replace(file["path"], file["content"], mode)
        os.chmod(file["path"], mode)
    except OSError as error:
        module.fail_json(msg=f"{file['path']} can't be written: {error.strerror}; free space or set worker_root to a folder of your own")
