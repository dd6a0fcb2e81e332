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
    _Mount(AnsibleModule(required_if=[("state", "present", ["source", "owner"])])).act()


class _Mount(host.Change):
    """The volume's mount on this host: its line in /etc/fstab, its units, the folder below."""

    def __init__(self, module):
        super().__init__(module)
        self.path, self.source, self.owner = self.params["path"], self.params["source"], self.params["owner"]
        self.current = _mounted(self.path)
        self.line = next(filter(self._is_ours, files.read(FSTAB).splitlines()), None)
        """The path's current line; None if there is none."""
        self.boot = host.Unit(self, UNIT)

    @property
    def unit(self):
        """The unit that systemd makes from the line in /etc/fstab; the mount's process belongs to it."""
        return self.module.run_command(["systemd-escape", "--path", "--suffix=mount", self.path])[1].strip()

    def present(self):
        """Bring line, mount and owner into place."""
        self._check_path()
        options = ["defaults", "_netdev", "noauto", "x-systemd.after=glusterd.service"]
        if self.params["backups"]:
            options.append(f"backup-volfile-servers={':'.join(self.params['backups'])}")
        line = f"{self.source} {_escaped(self.path)} glusterfs {','.join(options)} 0 0"
        boot = UNIT_TEXT.format(mount=self.unit.replace("\\", "\\\\"))
        stale = self.current is not None and (_dead(self.path) or self._old())
        todo = [] if self.line == line else ["write the line of /etc/fstab"]
        todo += [] if self.boot.has(boot) else ["mount at boot"]
        todo += ["mount anew"] if stale else [] if self.current else ["mount"]
        if self.current and not stale and not self._owned():
            todo.append("give it to the user")
        if todo and not self.module.check_mode:
            if "write the line of /etc/fstab" in todo:
                self._write_line(line)
            if "mount at boot" in todo:
                self.boot.install(boot)
            if stale:
                self._unmount()
            if stale or not self.current:
                self._mount()
            if not self._owned():
                user = pwd.getpwnam(self.owner)
                self.run("chown", "-R", f"{user.pw_uid}:{user.pw_gid}", self.path)
        self.end(todo)

    def absent(self):
        """Unmount, remove the line, remove the empty folder."""
        todo = ["unmount"] if self.line and self.current and self.current[0] == KIND else []
        todo += ["take the line out of /etc/fstab"] if self.line else []
        todo += ["mount no more at boot"] if os.path.exists(UNIT) else []
        if todo and not self.module.check_mode:
            if os.path.exists(UNIT):
                self.boot.remove()
            if "unmount" in todo:
                self._unmount()
            if self.line:
                self._write_line(None)
                # What lies below the mount.
                if os.path.isdir(self.path):
                    _immutable(self.path, False)
                    files.remove_if_empty(self.path)
        self.end(todo)

    def _check_path(self):
        """Refuse to mount over something else."""
        kind, source = self.current or (None, "")
        if self.current is not None and kind != KIND:
            self.fail(
                f"on dfs_path={self.path} {source} ({kind}) is mounted, not a GlusterFS volume; "
                "unmount it, or set dfs_kind: mounted to use it as it is"
            )
        if self.current is not None and source.partition(":/")[2] != self.source.partition(":/")[2]:
            self.fail(f"on dfs_path={self.path} another volume is mounted: {source}; set another dfs_path or dfs_volume")
        if self.current is None and files.names(self.path):
            self.fail(
                f"dfs_path={self.path} holds {', '.join(files.names(self.path)[:3])}, which a mount would hide; "
                "move that away, or set another dfs_path"
            )

    def _old(self):
        """Return whether the mount's process runs with earlier certificates than the current ones."""

        def is_mount(words):
            return os.path.basename(words[0]) == "glusterfs" and words[-2:] == [self.path, ""]

        return bool(host.older(host.running(is_mount), ACCESS))

    def _is_ours(self, line):
        """Return whether a line of /etc/fstab mounts a GlusterFS volume on the path."""
        words = line.split()
        return len(words) >= 3 and not line.startswith("#") and host.unescaped(words[1]) == self.path and words[2] == "glusterfs"

    def _write_line(self, line):
        """Replace the path's line, add it, or with None remove it; then reload systemd."""
        kept = [other for other in files.read(FSTAB).splitlines() if not self._is_ours(other)]
        files.replace(FSTAB, "".join(f"{each}\n" for each in [*kept, *([line] if line else [])]))
        self.run("systemctl", "daemon-reload")

    def _mount(self):
        """Mount on a folder of root's, immutable if possible, and check that it is mounted."""
        os.makedirs(self.path, exist_ok=True)
        _immutable(self.path, False)
        os.chown(self.path, 0, 0)
        os.chmod(self.path, 0o555)  # noqa: S103 - nobody writes below a mount
        _immutable(self.path, True)
        log = f"/var/log/glusterfs/{self.path.strip('/').replace('/', '-')}.log"
        self.module.run_command(["systemctl", "reset-failed", self.unit])
        code, _, error = self.module.run_command(["systemctl", "start", self.unit])
        if code != 0 or _mounted(self.path) is None:
            self.fail(
                f"{self.source} can't be mounted on {self.path}: {error.strip() or 'no reason given'} "
                f"Do the servers run (sudo gluster volume status), and are their ports reachable? The last lines of {log} say more"
            )

    def _owned(self):
        """Return whether the user can write; root always can, so a user's folder keeps its owner."""
        return pwd.getpwnam(self.owner).pw_uid in (0, os.stat(self.path).st_uid)

    def _unmount(self):
        """Unmount, or report what prevents it."""
        code, _, error = self.module.run_command(["umount", *(["--lazy"] if _dead(self.path) else []), self.path])
        if code != 0:
            self.fail(f"{error.strip()}; end what uses {self.path} there (sudo fuser -vm {self.path}), then run this again")


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


def _immutable(path, wanted):
    """Set or clear the flag; without it, the folder is still guarded by owner and mode."""
    subprocess.run(["chattr", "+i" if wanted else "-i", path], capture_output=True, check=False)


if __name__ == "__main__":
    main()
