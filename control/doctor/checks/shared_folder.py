"""The folder that all hosts share, and the files that a run reads from it."""

from collections.abc import Iterator, Mapping
from typing import Any

from control.doctor.checks.model import FAIL, OK, WARN, Check, Subject

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


def dfs(subject: Subject) -> Iterator[Check]:
    """The shared folder: mounted, writable, and really the same one."""
    facts, need, limit = subject.facts["dfs"], subject.need, "one folder that all hosts see"
    if facts is None:
        return
    if "error" in facts:
        fix = subject.on(f"sudo mount -a; or {need.provision}")
        yield subject.check(FAIL, "dfs", f"{SILENT}: {facts['error']}", fix=fix)
        return
    value, wrong = f"{facts['path']} ({facts['type']} of {facts['source']})", _not_shared(subject)
    if wrong:
        fix = f"mount the shared file system there on every host ({need.provision}), or set dfs_path"
        yield subject.check(FAIL, "dfs", f"{value} {wrong}", limit, fix)
    elif not facts.get("writable", True):
        user = subject.facts.get("user")
        yield subject.check(FAIL, "dfs", f"{value} can't be written by {user}", fix=f"sudo chown {user} {facts['path']}")
    elif need.token is None and facts["kind"] != "local" and facts["type"] in LOCAL_TYPES:
        # The server of an NFS share may use its own disk; a launch checks that every host reads what was
        # published.
        fix = "fine on the host that exports the folder; on any other: mount it there, or set dfs_path"
        yield subject.check(WARN, "dfs", f"{value} is on this host's own disk", limit, fix)
    else:
        # An upload checks for enough space before it sends: the doctor does not know what is published next.
        yield subject.check(OK, "dfs", f"{value}, {facts['free_mb']:,} MB free")


def _not_shared(subject: Subject) -> str:
    facts, token = subject.facts["dfs"], subject.need.token
    if facts["kind"] == "local":
        return ""
    if facts["kind"] == "glusterfs" and facts["type"] != "fuse.glusterfs":
        return "is not a GlusterFS mount"
    if token is not None:
        path, digest = token
        read = _read(subject, path)
        if "error" in read:
            return f"is not shared: a file just written by another host is not there ({read['error']})"
        return "" if read.get("sha256") == digest else "is not shared: a file just written by another host has different content here"
    return ""


def _read(subject: Subject, path: str) -> dict[str, Any]:
    return next((one for one in subject.facts["tokens"] if one["path"] == path), {"error": "was not checked"})


def files(subject: Subject) -> Iterator[Check]:
    """Dataset and code are readable and as published."""
    for path, digest in subject.need.files.items():
        read = _read(subject, path)
        if "error" in read:
            fix = "ls -l it on the host; train.yml publishes it again if it is missing from the shared folder"
            yield subject.check(FAIL, "file", f"{path} can't be read: {read['error']}", "readable", fix)
        elif digest and read.get("sha256") and read["sha256"] != digest:
            fix = f"ansible-playbook -i {subject.need.inventory} train.yml sends it again; then check who can write to that folder (ls -l)"
            yield subject.check(FAIL, "file", f"{path} has digest {read['sha256'][:16]}", digest[:16], fix)
        else:
            yield subject.check(OK, "file", f"{path} {(read.get('sha256') or 'is readable')[:16]}")
