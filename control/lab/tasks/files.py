"""Keys and settings of the lab's nodes, and the files that reach them: made once, then only updated."""

import os
import shutil
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from control.common.task import Task
from control.lab import lab_inventory
from trainer.common.files import write_text

HOST_KEY = "ssh_host_ed25519_key"
FOR_ALL = 0o644
"""For names and public keys: a node's sshd reads them as the user who logs in, and a user of sudo reads them as themselves."""
KEYS = ".ssh"  # Ansible reads a folder of inventories, but no names that begin with a dot


def files(task: Task) -> dict[str, Any]:
    """Write what is missing or different.

    Writes `<place>/nodes/<node>/settings`, which the node sees read-only, and `key` and `known_hosts` of the inventory.
    """
    plan = task.arguments["lab"]
    nodes_folder, inventory = Path(plan["place"]) / "nodes", Path(plan["inventory"])
    (inventory / "group_vars").mkdir(parents=True, exist_ok=True)
    keys_folder = inventory / KEYS
    changed = [_key_pair(keys_folder / "key", "lockstep-lab"), _give(keys_folder / "key", int(os.environ.get("SUDO_UID", os.getuid())))]
    changed += [_node(nodes_folder / node["name"], node, plan, keys_folder) for node in plan["nodes"]]
    keys = {node["name"]: _read(nodes_folder / node["name"] / "settings" / f"{HOST_KEY}.pub") for node in plan["nodes"]}
    changed.append(_write(keys_folder / "known_hosts", lab_inventory.known_hosts(plan["nodes"], keys)))
    return {"changed": any(changed)}


def _node(folder: Path, node: dict[str, Any], plan: dict[str, Any], keys: Path) -> bool:
    if node["container"] in plan["create"] and (folder / "brick").exists():
        shutil.rmtree(folder / "brick")  # of a container that is gone: a new one's volume must not find it
    new = not (folder / "brick").is_dir()
    (folder / "brick").mkdir(parents=True, exist_ok=True)
    settings = folder / "settings"
    written = [
        _key_pair(settings / HOST_KEY, node["name"]),
        _write(settings / "hosts", lab_inventory.hosts_file(plan["nodes"])),
        _write(settings / "link", plan["settings"]["link"] + "\n"),
        _write(settings / "authorized_keys", _read(keys / "key.pub")),
    ]
    return new or any(written)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _write(path: Path, content: str) -> bool:
    if path.is_file() and _read(path) == content:
        return False
    write_text(path, content, FOR_ALL)
    return True


def _key_pair(path: Path, comment: str) -> bool:
    """Make an SSH key, whole or not at all: the private half is moved into place last."""
    public = path.with_name(f"{path.name}.pub")
    if path.is_file() and public.is_file():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    write_text(public, f"{key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()} {comment}\n", FOR_ALL)
    write_text(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode(), 0o600)
    return True


def _give(path: Path, user: int) -> bool:
    """Let the user who called sudo read the key."""
    if path.stat().st_uid == user:
        return False
    os.chown(path, user, -1)
    return True
