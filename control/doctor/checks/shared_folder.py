"""The folder that all hosts share, and the files that a run reads from it."""

from collections.abc import Iterator, Mapping
from typing import Any

from control.doctor.checks.model import FAIL, OK, WARN, Check, Requirement, on

LOCAL_TYPES = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay", "tmpfs", "vfat")
SILENT = "the shared folder does not answer"
NETWORK_TYPES = ("nfs", "cifs", "smb", "ceph", "lustre", "9p", "afs", "beegfs", "gpfs", "fuse.glusterfs", "fuse.ceph", "fuse.sshfs")


def one_folder(places: Mapping[str, tuple[str, str, str]]) -> list[list[str]]:
    """Hosts that see the same folder, in groups of two or more.

    Args:
        places: by host, the path and the type and source of its file system.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, (path, fs_type, source) in places.items():
        if fs_type.startswith(NETWORK_TYPES):
            groups.setdefault((path, source), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def dfs(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Iterator[Check]:
    """The shared folder: mounted, writable, and really the same one."""
    found, name = facts["dfs"], host["name"]
    if found is None:
        return
    if "error" in found:
        fix = on(name, f"sudo mount -a; or ansible-playbook -i {need.inventory} provision.yml")
        yield Check(FAIL, name, "dfs", f"{SILENT}: {found['error']}", fix=fix)
        return
    value, wrong = f"{found['path']} ({found['type']} of {found['source']})", _not_shared(found, facts, need)
    if wrong:
        fix = f"mount the shared file system there on every host (ansible-playbook -i {need.inventory} provision.yml), or set dfs_path"
        yield Check(FAIL, name, "dfs", f"{value} {wrong}", "one folder that all hosts see", fix)
    elif not found.get("writable", True):
        yield Check(
            FAIL, name, "dfs", f"{value} can't be written by {facts.get('user')}", fix=f"sudo chown {facts.get('user')} {found['path']}"
        )
    elif need.token is None and found["kind"] != "local" and found["type"] in LOCAL_TYPES:
        # The server of an NFS share may use its own disk; a launch checks that every host reads what was
        # published.
        fix = "fine on the host that exports the folder; on any other: mount it there, or set dfs_path"
        yield Check(WARN, name, "dfs", f"{value} is on this host's own disk", "one folder that all hosts see", fix)
    else:
        # An upload checks for enough space before it sends: the doctor does not know what is published next.
        yield Check(OK, name, "dfs", f"{value}, {found['free_mb']:,} MB free")


def _not_shared(found: dict[str, Any], facts: dict[str, Any], need: Requirement) -> str:
    if found["kind"] == "local":
        return ""
    if found["kind"] == "glusterfs" and found["type"] != "fuse.glusterfs":
        return "is no GlusterFS mount"
    if need.token is not None:
        path, digest = need.token
        read = _read(facts, path)
        if "error" in read:
            return f"is not shared: a file just written by another host is not there ({read['error']})"
        return "" if read.get("sha256") == digest else "is not shared: a file just written by another host has another content here"
    return ""


def _read(facts: dict[str, Any], path: str) -> dict[str, Any]:
    tokens = facts["tokens"]
    return next((one for one in tokens if one["path"] == path), {"error": "was not looked for"})


def files(host: dict[str, Any], facts: dict[str, Any], need: Requirement) -> Iterator[Check]:
    """Dataset and code are readable and as published."""
    for path, digest in need.files.items():
        read = _read(facts, path)
        if "error" in read:
            fix = "ls -l it on the host; train.yml publishes it anew when it is gone from the shared folder"
            yield Check(FAIL, host["name"], "file", f"{path} can't be read: {read['error']}", "readable", fix)
        elif digest and read.get("sha256") and read["sha256"] != digest:
            fix = f"ansible-playbook -i {need.inventory} train.yml sends it anew; and see who can write that folder (ls -l)"
            yield Check(FAIL, host["name"], "file", f"{path} has digest {read['sha256'][:16]}", digest[:16], fix)
        else:
            yield Check(OK, host["name"], "file", f"{path} {(read.get('sha256') or 'is readable')[:16]}")
