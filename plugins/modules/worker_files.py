"""Ansible module: the small files of a run, written whole or not at all."""

import contextlib
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: worker_files
short_description: Write several small files in one go
description:
  - Each file is complete or absent, it is written beside its place and renamed.
  - A file that has its content already is left alone.
options:
  files:
    description: A list of dicts with C(path) (absolute), C(content), and optionally C(mode) (octal digits, 0644 by default).
    type: list
    elements: dict
    required: true
author: Lockstep
"""

EXAMPLES = """
- name: Write a worker's files
  worker_files:
    files:
      - {path: /home/pi/lockstep/runs/my-run/config.yml, content: "seed: 1\\n"}
      - {path: /home/pi/lockstep/runs/my-run/run_worker.sh, content: "#!/bin/sh\\n", mode: "0755"}
"""

RETURN = """
written:
  description: Paths of the files that were new or had other content.
  returned: always
  type: list
"""


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"files": {"type": "list", "elements": "dict", "required": True}},
        supports_check_mode=True,
    )
    other = [file for file in module.params["files"] if read(file["path"]) != file["content"]]
    if not module.check_mode:
        for file in other:
            write(module, file)
        for file in module.params["files"]:
            os.chmod(file["path"], mode(file))
    module.exit_json(changed=bool(other), written=[file["path"] for file in other])


def read(path):
    """A file's text, or None when there is none."""
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def mode(file):
    """The wanted permissions as a number."""
    return int(str(file.get("mode", "0644")), 8)


def write(module, file):
    """Write one file beside its place and rename it."""
    folder = os.path.dirname(file["path"])
    part = None
    try:
        os.makedirs(folder, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=folder, prefix=".part-")
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(file["content"])
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, file["path"])
    except OSError as error:
        if part is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
        module.fail_json(msg=f"{file['path']} can't be written: {error.strerror}; free space or set worker_root to a folder of your own")


if __name__ == "__main__":
    main()
