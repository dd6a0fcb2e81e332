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
    module = AnsibleModule()
    {"present": _present, "absent": _absent}[module.params["state"]](module)


def _present(module):
    """Bring the server into place."""
    if module.get_bin_path("glusterd") is None:
        if module.check_mode:
            module.exit_json(changed=True, did=["start glusterd", "make the brick"])
        module.fail_json(msg=f"{host.name()}: glusterd is missing; install it: sudo apt-get install glusterfs-server")
    todo = _wanting(module)
    if todo and not module.check_mode:
        _note(module)
        if "limit ports" in todo:
            _limit_ports(HIGHEST_PORT)
        if "start the daemons anew" in todo:
            _end_old(module)
        _enable(module, "start glusterd" in todo, not {"limit ports", "start the daemons anew"}.isdisjoint(todo))
        _make_brick(module)
    module.exit_json(changed=bool(todo), did=todo)


def _wanting(module):
    """List the steps that bring the server to its required state."""
    todo = []
    setting = MAX_PORT.search(files.read(SETTINGS))
    if setting and int(setting.group(2)) != HIGHEST_PORT:
        todo.append("limit ports")
    if module.run_command(["systemctl", "is-active", "--quiet", SERVICE])[0] != 0 or not host.enabled(module, SERVICE):
        todo.append("start glusterd")
    if _old(module):
        todo.append("start the daemons anew")
    if not os.path.isdir(module.params["brick"]):
        todo.append("make the brick")
    return todo


def _old(module):
    """Daemons of GlusterFS, not mounts, that do not know the current certificates."""
    return host.older(host.running(_is_daemon), ACCESS)


def _is_daemon(words):
    """Return whether a command line is that of glusterd, of a brick, or of the self-heal daemon."""
    program = os.path.basename(words[0])
    return program in ("glusterd", "glusterfsd") or (program == "glusterfs" and any("shd/" in word for word in words))


def _end_old(module):
    """End them; the main daemon starts the others when it is started."""
    _systemctl(module, "stop", SERVICE)
    pids = _old(module)
    for number, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, ANSWER_S)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while pids and time.monotonic() < deadline:
            pids = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
            time.sleep(0.1)


def _note(module):
    """Record, once, the state before."""
    if os.path.exists(RECORD):
        return
    setting = MAX_PORT.search(files.read(SETTINGS))
    before = {
        "max_port": int(setting.group(2)) if setting else None,
        "enabled": host.enabled(module, SERVICE),
        "made_brick": not os.path.isdir(module.params["brick"]),
    }
    files.Record(RECORD).write(before)


def _limit_ports(number):
    """Write the bricks' highest port into the daemon's settings."""
    files.replace(SETTINGS, MAX_PORT.sub(lambda setting: f"{setting.group(1)}{number}", files.read(SETTINGS)))


def _enable(module, start, restart):
    """Start the daemon, now and at every boot, and wait until it answers."""
    if start or restart:
        _systemctl(module, "enable", SERVICE)
        _systemctl(module, "restart" if restart else "start", SERVICE)
    deadline = time.monotonic() + ANSWER_S
    while module.run_command(["gluster", "--mode=script", "pool", "list"])[0] != 0:
        if time.monotonic() > deadline:
            module.fail_json(msg=f"{host.name()}: glusterd has not answered for {ANSWER_S} s; look at: journalctl -u glusterd")
        time.sleep(0.5)


def _make_brick(module):
    """Make the folder, and check that its file system can hold a brick."""
    brick = module.params["brick"]
    os.makedirs(brick, mode=0o755, exist_ok=True)
    try:
        os.setxattr(brick, "trusted.lockstep", b"1")
    except OSError as error:
        module.fail_json(
            msg=f"{host.name()}: dfs_brick={brick} can't hold a brick: no extended attributes there ({error.strerror}); "
            "set dfs_brick to a folder on ext4, xfs or btrfs"
        )


def _absent(module):
    """Undo what is recorded."""
    record, brick = files.Record(RECORD), module.params["brick"]
    if not os.path.exists(RECORD):
        module.exit_json(changed=False, did=[])
    foreign = [name for name in files.names(brick) if name not in FOLDERS and not name.startswith(".")]
    if foreign:
        module.fail_json(
            msg=f"{host.name()}: {brick} also holds {', '.join(foreign[:5])}, which Lockstep did not put there; move that away first"
        )
    if not module.check_mode:
        before = record.read()
        if before["made_brick"] and os.path.isdir(brick):
            shutil.rmtree(brick)
        if os.path.exists(SETTINGS) and before["max_port"] is not None:
            _limit_ports(before["max_port"])
        if module.get_bin_path("glusterd") and not before["enabled"]:
            _systemctl(module, "disable", "--now", SERVICE)
        record.remove()
    module.exit_json(changed=True, did=["remove the brick", "give back glusterd"])


def _systemctl(module, *arguments):
    host.run(module, "systemctl", *arguments, hint=f"; look at: journalctl -u {SERVICE}")


if __name__ == "__main__":
    main()
