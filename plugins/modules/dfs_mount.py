"""Ansible module: the mount of a GlusterFS volume."""

import errno
import os
import pwd
import subprocess

from ansible.module_utils import lockstep_files as files
from ansible.module_utils import lockstep_host as host
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: dfs_mount
short_description: Mount a GlusterFS volume now and at every boot
description:
  - Keeps one line of /etc/fstab, the mount itself, and a systemd unit that mounts at boot. After a power cut the
    servers need each other before they serve, and a mount by /etc/fstab alone is tried only once; the unit keeps trying.
  - A mount is made again if its process died, or started before TLS was switched on.
  - The empty folder below the mount belongs to root and is immutable where its file system supports that,
    so that nobody writes to it by mistake while nothing is mounted.
options:
  path: {type: path, required: true, description: Where the volume is mounted.}
  source: {type: str, description: "C(address:/volume); needed for C(present)."}
  backups: {type: list, elements: str, default: [], description: Servers to ask for the volume if the first one is down.}
  owner: {type: str, description: User to whom the mounted folder is given; needed for C(present).}
  state: {type: str, choices: [present, absent], default: present, description: Whether the volume should be mounted.}
"""

RETURN = """
did: {type: list, returned: always, description: What was changed.}
"""

KIND = "fuse.glusterfs"
ACCESS = host.SECURE_ACCESS
FSTAB = "/etc/fstab"
UNIT = "/etc/systemd/system/lockstep-dfs.service"
UNIT_TEXT = """# Made by Lockstep.
[Unit]
Description=Lockstep's shared folder
Wants=network-online.target
After=network-online.target glusterd.service
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=systemctl start {mount}
TimeoutStartSec=60
Restart=on-failure
RestartSec=3

[Install]
WantedBy=multi-user.target
"""


def main():
    module = AnsibleModule(required_if=[("state", "present", ["source", "owner"])])
    {"present": _present, "absent": _absent}[module.params["state"]](module)


def _present(module):
    """Bring line, mount and owner into place."""
    path, current = module.params["path"], _mounted(module.params["path"])
    _check_path(module, current)
    unit, unit_text = host.Unit(module, UNIT), UNIT_TEXT.format(mount=_mount_unit(module).replace("\\", "\\\\"))
    stale = current is not None and (_dead(path) or _old(module))
    todo = [] if _line_of(module) == _wanted_line(module) else ["write the line of /etc/fstab"]
    todo += [] if unit.has(unit_text) else ["mount at boot"]
    todo += ["mount anew"] if stale else [] if current else ["mount"]
    if current and not stale and not _owned(module):
        todo.append("give it to the user")
    if todo and not module.check_mode:
        if "write the line of /etc/fstab" in todo:
            _write_line(module, _wanted_line(module))
        if "mount at boot" in todo:
            unit.install(unit_text)
        if stale:
            _unmount(module)
        if stale or not current:
            _guard(module)
            _mount(module)
        if not _owned(module):
            user = pwd.getpwnam(module.params["owner"])
            host.run(module, "chown", "-R", f"{user.pw_uid}:{user.pw_gid}", path)
    module.exit_json(changed=bool(todo), did=todo)


def _check_path(module, current):
    """Refuse to mount over something else."""
    path = module.params["path"]
    if current is not None and current[0] != KIND:
        module.fail_json(
            msg=f"{host.name()}: on dfs_path={path} {current[1]} ({current[0]}) is mounted, not a GlusterFS volume; "
            "unmount it, or set dfs_kind: mounted to use it as it is"
        )
    if current is not None and current[1].partition(":/")[2] != module.params["source"].partition(":/")[2]:
        module.fail_json(
            msg=f"{host.name()}: on dfs_path={path} another volume is mounted: {current[1]}; set another dfs_path or dfs_volume"
        )
    if current is None and os.path.isdir(path) and os.listdir(path):
        module.fail_json(
            msg=f"{host.name()}: dfs_path={path} holds {', '.join(sorted(os.listdir(path))[:3])}, which a mount would hide; "
            "move that away, or set another dfs_path"
        )


def _mounted(path):
    """File system type and source of what is mounted on a path; None if nothing is."""
    point, *mount = host.mount_of(os.path.normpath(path))
    return tuple(mount) if point == os.path.normpath(path) else None


def _escaped(word):
    """A word as /etc/fstab takes it."""
    return word.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")


def _dead(path):
    """Return whether the mount's process has ended."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.EIO, errno.ESTALE)
    return False


def _old(module):
    """Return whether the mount's process runs with earlier certificates than the current ones."""

    def is_mount(words):
        return os.path.basename(words[0]) == "glusterfs" and words[-2:] == [module.params["path"], ""]

    return bool(host.older(host.running(is_mount), ACCESS))


def _wanted_line(module):
    options = ["defaults", "_netdev", "noauto", "x-systemd.after=glusterd.service"]
    if module.params["backups"]:
        options.append(f"backup-volfile-servers={':'.join(module.params['backups'])}")
    return f"{module.params['source']} {_escaped(module.params['path'])} glusterfs {','.join(options)} 0 0"


def _line_of(module):
    """The current line for the path; None if there is none."""
    for line in files.read(FSTAB).splitlines():
        if _is_ours(module, line):
            return line
    return None


def _is_ours(module, line):
    """Return whether a line of /etc/fstab mounts a GlusterFS volume on the path."""
    words = line.split()
    return len(words) >= 3 and not line.startswith("#") and host.unescaped(words[1]) == module.params["path"] and words[2] == "glusterfs"


def _write_line(module, line):
    """Replace the path's line, add it, or with None remove it; then reload systemd."""
    kept = [other for other in files.read(FSTAB).splitlines() if not _is_ours(module, other)]
    files.replace(FSTAB, "".join(f"{each}\n" for each in [*kept, *([line] if line else [])]))
    host.run(module, "systemctl", "daemon-reload")


def _mount_unit(module):
    """Name of the unit that systemd makes from the line in /etc/fstab; the mount's process belongs to it."""
    _, out, _ = module.run_command(["systemd-escape", "--path", "--suffix=mount", module.params["path"]])
    return out.strip()


def _guard(module):
    """Make the folder below the mount root's, and immutable if possible."""
    path = module.params["path"]
    os.makedirs(path, exist_ok=True)
    _immutable(path, False)
    os.chown(path, 0, 0)
    os.chmod(path, 0o555)  # noqa: S103 - nobody writes below a mount
    _immutable(path, True)


def _immutable(path, wanted):
    """Set or clear the flag; without it, the folder is still guarded by owner and mode."""
    subprocess.run(["chattr", "+i" if wanted else "-i", path], capture_output=True, check=False)


def _mount(module):
    """Mount, and check that it is mounted."""
    path = module.params["path"]
    log = f"/var/log/glusterfs/{path.strip('/').replace('/', '-')}.log"
    module.run_command(["systemctl", "reset-failed", _mount_unit(module)])
    code, _, error = module.run_command(["systemctl", "start", _mount_unit(module)])
    if code != 0 or _mounted(path) is None:
        module.fail_json(
            msg=f"{host.name()}: {module.params['source']} can't be mounted on {path}: {error.strip() or 'no reason given'} "
            f"Do the servers run (sudo gluster volume status), and are their ports reachable? The last lines of {log} say more"
        )


def _owned(module):
    """Return whether the user can write; root always can, so a user's folder keeps its owner."""
    user, owner = pwd.getpwnam(module.params["owner"]).pw_uid, os.stat(module.params["path"]).st_uid
    return user in (0, owner)


def _absent(module):
    """Unmount, remove the line, remove the empty folder."""
    path, current, line = module.params["path"], _mounted(module.params["path"]), _line_of(module)
    todo = ["unmount"] if line and current and current[0] == KIND else []
    todo += ["take the line out of /etc/fstab"] if line else []
    todo += ["mount no more at boot"] if os.path.exists(UNIT) else []
    if todo and not module.check_mode:
        if os.path.exists(UNIT):
            host.Unit(module, UNIT).remove()
        if "unmount" in todo:
            _unmount(module)
        if line:
            _write_line(module, None)
            # What lies below the mount.
            if os.path.isdir(path):
                _immutable(path, False)
                files.remove_if_empty(path)
    module.exit_json(changed=bool(todo), did=todo)


def _unmount(module):
    """Unmount, or report what prevents it."""
    path = module.params["path"]
    code, _, error = module.run_command(["umount", *(["--lazy"] if _dead(path) else []), path])
    if code != 0:
        module.fail_json(msg=f"{host.name()}: {error.strip()}; end what uses {path} there (sudo fuser -vm {path}), then run this again")


if __name__ == "__main__":
    main()
