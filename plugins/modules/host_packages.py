"""Ansible module: Debian packages, with a record of newly installed ones."""

import os
import shutil
import time

from ansible.module_utils import lockstep_files as files
from ansible.module_utils import lockstep_host as host
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: host_packages
short_description: Install Debian packages, and remove only those installed here
description:
  - Installs what is missing, and records every newly installed package (including dependencies) in a file.
  - C(absent) removes only recorded packages, and of these only those on which nothing else depends.
  - A killed installation is completed, as is its record.
options:
  packages: {type: list, elements: str, default: [], description: Names of packages; needed for C(present).}
  record: {type: path, default: /var/lib/lockstep/packages.json, description: File that records the packages installed here.}
  leftovers: {type: dict, default: {}, description: "Files and folders that remain after a package's removal, by package."}
  state: {type: str, choices: [present, absent], default: present, description: Whether the packages should be installed.}
"""

RETURN = """
installed: {type: list, returned: state=present, description: Packages that this call installed.}
removed: {type: list, returned: state=absent, description: Packages that this call removed.}
kept: {type: list, returned: state=absent, description: Packages that were installed here and stay because others now depend on them.}
"""

LISTS = "/var/lib/apt/lists"
LISTS_AGE_S = 24 * 3600
LOCK_WAIT = "DPkg::Lock::Timeout=300"


def main():
    os.environ.update({"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "NEEDRESTART_SUSPEND": "1"})
    _Packages(AnsibleModule()).act()


class _Packages(host.Change):
    """Debian packages, and the record of those that were installed here."""

    def present(self):
        """Install what is missing."""
        file, before = files.Record(self.params["record"]), self._installed()
        record = file.read()
        missing = [name for name in self.params["packages"] if name not in before]
        pending = record.get("pending")
        if not missing and pending is None:
            self.module.exit_json(changed=False, installed=[])
        if self.module.check_mode:
            self.module.exit_json(changed=True, installed=missing)
        # Recorded beforehand: if this is killed, the next call still knows what was there.
        before = before if pending is None else set(pending)
        file.write({"installed": record.get("installed", []), "pending": sorted(before)})
        if pending is not None:
            self._apt(["dpkg", "--configure", "-a"])
        if missing:
            self._install(missing)
        new = sorted(self._installed() - before)
        file.write({"installed": sorted({*record.get("installed", []), *new})})
        shown = f"{len(new)} packages installed: {', '.join(missing)} and what they need"
        self.module.exit_json(changed=True, installed=new, show=f"{host.name()}: {shown}")

    def absent(self):
        """Remove what is recorded and not needed by others."""
        file = files.Record(self.params["record"])
        record = file.read()
        if not record:
            self.module.exit_json(changed=False, removed=[], kept=[])
        pending, ours = record.get("pending"), set(record.get("installed", []))
        if pending is not None and not self.module.check_mode:
            # An installation was killed: what it left half done can't be removed.
            self._apt(["dpkg", "--configure", "-a"])
        present_now = self._installed()
        ours |= present_now - set(pending) if pending is not None else set()
        mine = sorted(ours & present_now)
        removable = self._free(mine)
        if not self.module.check_mode:
            if removable:
                self._apt(["apt-get", "-q", "-y", "-o", LOCK_WAIT, "purge", *removable])
            for path in (path for name in removable for path in self.params["leftovers"].get(name, [])):
                if os.path.isdir(path):
                    shutil.rmtree(path)
                elif os.path.exists(path):
                    os.unlink(path)
            file.remove()
        self.module.exit_json(changed=True, removed=removable, kept=sorted(set(mine) - set(removable)))

    def _install(self, missing):
        """Install packages; fetches an old or missing package list first."""
        fresh = os.path.isdir(f"{LISTS}/partial") and len(os.listdir(LISTS)) > 3 and time.time() - os.path.getmtime(LISTS) < LISTS_AGE_S
        argv = ["apt-get", "-q", "-y", "-o", LOCK_WAIT, "--no-install-recommends", "install", *missing]
        if fresh and self.module.run_command(argv)[0] == 0:
            return
        self._apt(["apt-get", "-q", "-o", LOCK_WAIT, "update"])
        self._apt(argv)

    def _apt(self, argv):
        code, out, error = self.module.run_command(argv)
        if code != 0:
            errors = [line for line in (out + error).splitlines() if line.startswith(("E:", "Err:", "dpkg:"))]
            reason = " ".join((errors or error.splitlines() or ["nothing"])[-3:])
            self.fail(
                f"`{' '.join(argv)}` ended with exit code {code}: {reason}. "
                "Fix that on the host (network, package sources, disk), then run provision.yml again."
            )

    def _free(self, mine):
        """Our packages whose removal removes only packages of ours."""
        if not mine or self._goes(mine) <= set(mine):
            return mine
        return [name for name in mine if self._goes([name]) <= set(mine)]

    def _goes(self, names):
        """Packages that apt would remove with these."""
        _, out, _ = self.module.run_command(["apt-get", "-s", "purge", *names])
        return {line.split()[1].partition(":")[0] for line in out.splitlines() if line.startswith(("Remv ", "Purg "))}

    def _installed(self):
        out = self.run("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\\n")
        return {line.split()[0] for line in out.splitlines() if line.endswith(" installed")}


if __name__ == "__main__":
    main()
