"""Ansible module: a system unit that starts the sessions of supervised workers again after a restart of the host."""

import contextlib
import os
import pwd
import sys

from ansible.module_utils import lockstep_files as files
from ansible.module_utils import lockstep_host as host
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: resume_service
short_description: Supervised workers go on after a restart of the host
description:
  - Installs a program and a systemd unit that runs it at every boot, as the user who owns the worker's directory, never as root.
  - A host without systemd, or whose workers belong to root, is left as it is, with a word.
options:
  program: {type: str, description: Text of the program; needed for C(present).}
  root: {type: path, description: The worker's own directory; needed for C(present).}
  shared: {type: path, description: Folder that must be there before workers start; needed for C(present).}
  state: {type: str, choices: [present, absent], default: present, description: Whether the unit should exist.}
"""

RETURN = """
resumes: {type: str, returned: state=present, description: "C(resumes), or why not."}
"""

SYSTEMD = "/run/systemd/system"
PROGRAM = "/usr/local/lib/lockstep/resume.py"
UNIT = "/etc/systemd/system/lockstep-resume.service"
UNIT_TEXT = """# Made by Lockstep.
[Unit]
Description=Lockstep: supervised workers go on after a restart
Wants=network-online.target
After=network-online.target time-sync.target lockstep-firewall.service lockstep-dfs.service

[Service]
Type=oneshot
# What was started stays.
RemainAfterExit=yes
User={user}
ExecStart={command}
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""


def main():
    _Service(AnsibleModule(required_if=[("state", "present", ["program", "root", "shared"])])).act()


class _Service(host.Change):
    """The program and its unit."""

    def present(self):
        """Install program and unit."""
        if not os.path.isdir(SYSTEMD):
            self.module.exit_json(changed=False, resumes="no: systemd does not run")
        user = self._owner()
        if user == "root":
            self.module.exit_json(changed=False, resumes="no: root trains")
        # Without the environment's and the user's own modules.
        command = [sys.executable, "-I", PROGRAM, self.params["root"], self.params["shared"]]
        unit, text = host.Unit(self, UNIT), UNIT_TEXT.format(user=user, command=" ".join(map(_quoted, command)))
        same = files.read(PROGRAM) == self.params["program"] and unit.has(text)
        if not same and not self.module.check_mode:
            os.makedirs(os.path.dirname(PROGRAM), exist_ok=True)
            files.replace(PROGRAM, self.params["program"])
            unit.install(text)
        self.module.exit_json(changed=not same, resumes="resumes")

    def absent(self):
        """Remove unit and program."""
        there = [path for path in (UNIT, PROGRAM) if os.path.exists(path)]
        if there and not self.module.check_mode:
            if UNIT in there:
                # Sessions that began after it has started the tmux server are its processes, too.
                host.Unit(self, UNIT).remove(stop=False)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(PROGRAM)
            files.remove_if_empty(os.path.dirname(PROGRAM))
        self.module.exit_json(changed=bool(there))

    def _owner(self):
        """Name of the user whose the worker's directory is, or will be in check mode."""
        number = os.stat(host.existing(self.params["root"])).st_uid
        try:
            return pwd.getpwuid(number).pw_name
        except KeyError:
            self.fail(
                f"{self.params['root']} belongs to user number {number}, who is no user there. Fix: chown it to the user "
                "who trains, or recovery_at_boot: false"
            )


def _quoted(word):
    """A word for a unit's command line, in which systemd replaces nothing."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


if __name__ == "__main__":
    main()
