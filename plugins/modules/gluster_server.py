"""Ansible module: one host's GlusterFS daemon and its folder for a volume."""

import contextlib
import os
import re
import shutil
import signal
import time

from ansible.module_utils import lockstep_files as files
from ansible.module_utils import lockstep_host as host
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gluster_server
short_description: The GlusterFS daemon on a host, and its brick
description:
  - Limits the bricks' ports, starts the daemon now and at every boot, makes the brick's folder.
  - Daemons that started before TLS was switched on, or with certificates that have changed, are restarted.
  - C(absent) removes the brick's folder if it was made here, restores the setting, and stops the daemon if it did not run before.
options:
  brick: {type: path, required: true, description: Folder in which GlusterFS keeps this host's share of the files.}
  state: {type: str, choices: [present, absent], default: present, description: Whether the server should exist.}
"""

RETURN = """
did: {type: list, returned: always, description: What was changed.}
"""

SETTINGS = "/etc/glusterfs/glusterd.vol"
ACCESS = host.SECURE_ACCESS
RECORD = "/var/lib/lockstep/gluster.json"
"""File that records the changes made on this host."""
MAX_PORT = re.compile(r"^(\s*option\s+max-port\s+)(\d+)", re.MULTILINE)
HIGHEST_PORT = 49251
"""Highest port of a brick, so that a firewall can name all of a brick's ports."""
FOLDERS = ("wheels", "datasets", "code")
"""Folders that Lockstep makes in the volume: a brick that holds anything else is not removed."""
SERVICE = "glusterd"
ANSWER_S = 60
END_S = 30


def main():
    _Server(AnsibleModule()).act()


class _Server(host.Change):
    """The daemon, its settings and its brick."""

    def present(self):
        """Bring the server into place."""
        if self.module.get_bin_path("glusterd") is None:
            if self.module.check_mode:
                self.end(["start glusterd", "make the brick"])
            self.fail("glusterd is missing; install it: sudo apt-get install glusterfs-server")
        todo = self._wanting()
        if todo and not self.module.check_mode:
            self._note()
            if "limit ports" in todo:
                _limit_ports(HIGHEST_PORT)
            if "start the daemons anew" in todo:
                self._end_old()
            self._enable("start glusterd" in todo, not {"limit ports", "start the daemons anew"}.isdisjoint(todo))
            self._make_brick()
        self.end(todo)

    def absent(self):
        """Undo what is recorded."""
        record, brick = files.Record(RECORD), self.params["brick"]
        if not os.path.exists(RECORD):
            self.end([])
        foreign = [name for name in files.names(brick) if name not in FOLDERS and not name.startswith(".")]
        if foreign:
            self.fail(f"{brick} also holds {', '.join(foreign[:5])}, which Lockstep did not put there; move that away first")
        if not self.module.check_mode:
            before = record.read()
            if before["made_brick"] and os.path.isdir(brick):
                shutil.rmtree(brick)
            if os.path.exists(SETTINGS) and before["max_port"] is not None:
                _limit_ports(before["max_port"])
            if self.module.get_bin_path("glusterd") and not before["enabled"]:
                self._systemctl("disable", "--now", SERVICE)
            record.remove()
        self.end(["remove the brick", "give back glusterd"])

    def _wanting(self):
        """List the steps that bring the server to its required state."""
        todo = []
        setting = MAX_PORT.search(files.read(SETTINGS))
        if setting and int(setting.group(2)) != HIGHEST_PORT:
            todo.append("limit ports")
        if self.module.run_command(["systemctl", "is-active", "--quiet", SERVICE])[0] != 0 or not self.enabled(SERVICE):
            todo.append("start glusterd")
        if self._old():
            todo.append("start the daemons anew")
        if not os.path.isdir(self.params["brick"]):
            todo.append("make the brick")
        return todo

    def _old(self):
        """Daemons of GlusterFS, not mounts, that do not know the current certificates."""
        return host.older(host.running(_is_daemon), ACCESS)

    def _end_old(self):
        """End them; the main daemon starts the others when it is started."""
        self._systemctl("stop", SERVICE)
        pids = self._old()
        for number, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, ANSWER_S)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + seconds
            while pids and time.monotonic() < deadline:
                pids = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
                time.sleep(0.1)

    def _note(self):
        """Record, once, the state before."""
        if os.path.exists(RECORD):
            return
        setting = MAX_PORT.search(files.read(SETTINGS))
        before = {
            "max_port": int(setting.group(2)) if setting else None,
            "enabled": self.enabled(SERVICE),
            "made_brick": not os.path.isdir(self.params["brick"]),
        }
        files.Record(RECORD).write(before)

    def _enable(self, start, restart):
        """Start the daemon, now and at every boot, and wait until it answers."""
        if start or restart:
            self._systemctl("enable", SERVICE)
            self._systemctl("restart" if restart else "start", SERVICE)
        deadline = time.monotonic() + ANSWER_S
        while self.module.run_command(["gluster", "--mode=script", "pool", "list"])[0] != 0:
            if time.monotonic() > deadline:
                self.fail(f"glusterd has not answered for {ANSWER_S} s; look at: journalctl -u glusterd")
            time.sleep(0.5)

    def _make_brick(self):
        """Make the folder, and check that its file system can hold a brick."""
        brick = self.params["brick"]
        os.makedirs(brick, mode=0o755, exist_ok=True)
        try:
            os.setxattr(brick, "trusted.lockstep", b"1")
        except OSError as error:
            self.fail(
                f"dfs_brick={brick} can't hold a brick: no extended attributes there ({error.strerror}); "
                "set dfs_brick to a folder on ext4, xfs or btrfs"
            )

    def _systemctl(self, *arguments):
        self.run("systemctl", *arguments, hint=f"; look at: journalctl -u {SERVICE}")


def _is_daemon(words):
    """Return whether a command line is that of glusterd, of a brick, or of the self-heal daemon."""
    program = os.path.basename(words[0])
    return program in ("glusterd", "glusterfsd") or (program == "glusterfs" and any("shd/" in word for word in words))


def _limit_ports(number):
    """Write the bricks' highest port into the daemon's settings."""
    files.replace(SETTINGS, MAX_PORT.sub(lambda setting: f"{setting.group(1)}{number}", files.read(SETTINGS)))


if __name__ == "__main__":
    main()
