"""Ansible module: contents of the distributed file system: a token that shows that it is shared, and folders to remove."""

import os
import re
import shutil
import time

from ansible.module_utils import lockstep_files as files
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: dfs_contents
short_description: Write, read and remove a token on the distributed file system; empty it
description:
  - A token that one host wrote and another can't read shows that they do not share the folder.
  - C(empty) removes the given folders. It refuses if there is anything else, or state of runs under Slurm.
  - C(wheels) removes folders of wheels that provisioning made in this folder, and the folder itself if nothing else is in it.
options:
  path: {type: path, required: true, description: The file system's folder.}
  action: {type: str, choices: [write, read, forget, empty, wheels], required: true, description: What to do.}
  token: {type: str, default: "", description: "Unique text; needed for C(write), C(read) and C(forget)."}
  writer: {type: str, default: "", description: "Name of the host that writes the token, for messages."}
  host: {type: str, default: "", description: "Name of this host, for messages."}
  kind: {type: str, choices: [glusterfs, mounted, local], default: mounted, description: Its kind; C(glusterfs) must be mounted.}
  folders: {type: list, elements: str, default: [], description: Names of the folders that C(empty) removes.}
"""

RETURN = """
removed: {type: list, returned: "action=empty, action=wheels", description: Folders that were removed.}
"""

# Clients of a network file system may cache a folder's listing for some seconds.
PATIENCE_S = 15.0
# Runs under Slurm keep their state here: removed only if empty.
JOBS = "slurm"
# Machine, Python, digest: provisioning's names for a folder of wheels, and for one in progress.
WHEELS = re.compile(r"(\.part-)?(x86_64|aarch64)-cp\d{3}-[0-9a-f]{16}")


def main():
    module = AnsibleModule()
    {"write": _write, "read": _read, "forget": _forget, "empty": _empty, "wheels": _wheels}[module.params["action"]](module)


def _token_path(module):
    return os.path.join(module.params["path"], f".lockstep-token-{module.params['token']}")


def _write(module):
    """Write the token; the user who trains must be able to."""
    path, host = module.params["path"], module.params["host"]
    _check_mounted(module)
    if module.check_mode:
        module.exit_json()
    try:
        if module.params["kind"] == "local":
            os.makedirs(path, exist_ok=True)
        with open(_token_path(module), "w", encoding="utf-8") as stream:
            stream.write(module.params["token"])
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        module.fail_json(
            msg=f"{host}: dfs_path={path} can't be written to: {error.strerror}. It must exist and belong to the user who trains; "
            f"mount it, create it (mkdir), or change its owner (sudo chown USER {path})"
        )
    module.exit_json()


def _check_mounted(module):
    """Refuse the empty folder below a missing mount."""
    path = module.params["path"]
    if module.params["kind"] == "glusterfs" and not os.path.ismount(path) and not module.check_mode:
        module.fail_json(
            msg=f"{module.params['host']}: nothing is mounted on dfs_path={path}; run provision.yml again, or: sudo mount {path}"
        )


def _read(module):
    """Read the token that another host wrote."""
    if module.check_mode:
        module.exit_json()
    deadline = time.monotonic() + PATIENCE_S
    host, writer, path = module.params["host"], module.params["writer"], module.params["path"]
    while (why := _unread(module)) is not None:
        if time.monotonic() > deadline:
            module.fail_json(
                msg=f"DFS not shared: {host} does not see what {writer} wrote to dfs_path={path} ({why}). Every host must have the same "
                "folder there: mount the shared one (NFS, CephFS, ...), or let provision.yml make one: dfs_kind: glusterfs"
            )
        time.sleep(0.5)
    module.exit_json()


def _unread(module):
    """Why the token can't be read; None if it can."""
    try:
        os.listdir(module.params["path"])
        with open(_token_path(module), encoding="utf-8") as stream:
            return None if stream.read() == module.params["token"] else "it reads something else"
    except OSError as error:
        return error.strerror


def _forget(module):
    if os.path.exists(_token_path(module)):
        os.unlink(_token_path(module))
    module.exit_json()


def _empty(module):
    path, folders = module.params["path"], module.params["folders"]
    names = files.names(path)
    if module.params["kind"] == "glusterfs" and not os.path.ismount(path):
        module.exit_json(removed=[])
    shared = os.path.join(path, JOBS)
    jobs = [name for name in files.names(shared) if _holds_files(os.path.join(shared, name))]
    if jobs:
        module.fail_json(
            msg=f"{module.params['host']}: dfs_path={path} holds in {JOBS}/ what runs under Slurm need to go on ({', '.join(jobs[:5])}), "
            f"and it would go with the volume; delete these runs (ansible-playbook playbooks/delete_run.yml -e run={jobs[0]}), "
            "or move it away first"
        )
    if JOBS in names:
        folders = [*folders, JOBS]
    foreign = [name for name in names if name not in folders and not name.startswith((".lockstep-token-", ".part-", ".trashcan"))]
    if foreign:
        module.fail_json(
            msg=f"{module.params['host']}: dfs_path={path} also holds {', '.join(foreign[:5])}, which Lockstep did not put there and which "
            "would go with the volume; move that away first"
        )
    mine = [name for name in names if name in folders]
    if not module.check_mode:
        for name in mine:
            shutil.rmtree(os.path.join(path, name))
    module.exit_json(changed=bool(mine), removed=mine)


def _holds_files(path):
    """Return whether there is a file: a look-up that crosses a removal can leave GlusterFS with an empty folder, which keeps nothing."""
    return not os.path.isdir(path) or any(inside for _, _, inside in os.walk(path))


def _wheels(module):
    """Remove folders of wheels, and their parent if nothing else is in it."""
    path = module.params["path"]
    names = files.names(path)
    mine = [name for name in names if WHEELS.fullmatch(name) and not os.path.islink(os.path.join(path, name))]
    if not module.check_mode:
        for name in mine:
            shutil.rmtree(os.path.join(path, name))
        if mine and mine == names and os.access(os.path.dirname(path), os.W_OK):
            os.rmdir(path)
    module.exit_json(changed=bool(mine), removed=mine)


if __name__ == "__main__":
    main()
