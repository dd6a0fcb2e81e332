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
    module = AnsibleModule()
    os.environ.update({"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "NEEDRESTART_SUSPEND": "1"})
    {"present": _present, "absent": _absent}[module.params["state"]](module)


def _present(module):
    """Install what is missing."""
    file, before = files.Record(module.params["record"]), _installed(module)
    record = file.read()
    missing = [name for name in module.params["packages"] if name not in before]
    pending = record.get("pending")
    if not missing and pending is None:
        module.exit_json(changed=False, installed=[])
    if module.check_mode:
        module.exit_json(changed=True, installed=missing)
    # Recorded beforehand: if this is killed, the next call still knows what was there.
    before = before if pending is None else set(pending)
    file.write({"installed": record.get("installed", []), "pending": sorted(before)})
    if pending is not None:
        _apt(module, ["dpkg", "--configure", "-a"])
    if missing:
        _install(module, missing)
    new = sorted(_installed(module) - before)
    file.write({"installed": sorted({*record.get("installed", []), *new})})
    shown = f"{len(new)} packages installed: {', '.join(missing)} and what they need"
    module.exit_json(changed=True, installed=new, show=f"{host.name()}: {shown}")


def _install(module, missing):
    """Install packages; fetches an old or missing package list first."""
    fresh = os.path.isdir(f"{LISTS}/partial") and len(os.listdir(LISTS)) > 3 and time.time() - os.path.getmtime(LISTS) < LISTS_AGE_S
    argv = ["apt-get", "-q", "-y", "-o", LOCK_WAIT, "--no-install-recommends", "install", *missing]
    if fresh and module.run_command(argv)[0] == 0:
        return
    _apt(module, ["apt-get", "-q", "-o", LOCK_WAIT, "update"])
    _apt(module, argv)


def _apt(module, argv):
    code, out, error = module.run_command(argv)
    if code != 0:
        errors = [line for line in (out + error).splitlines() if line.startswith(("E:", "Err:", "dpkg:"))]
        reason = " ".join((errors or error.splitlines() or ["nothing"])[-3:])
        module.fail_json(
            msg=f"{host.name()}: `{' '.join(argv)}` ended with exit code {code}: {reason}. "
            "Fix that on the host (network, package sources, disk), then run provision.yml again."
        )


def _absent(module):
    """Remove what is recorded and not needed by others."""
    file = files.Record(module.params["record"])
    record = file.read()
    if not record:
        module.exit_json(changed=False, removed=[], kept=[])
    pending, ours = record.get("pending"), set(record.get("installed", []))
    if pending is not None and not module.check_mode:
        # An installation was killed: what it left half done can't be removed.
        _apt(module, ["dpkg", "--configure", "-a"])
    present_now = _installed(module)
    ours |= present_now - set(pending) if pending is not None else set()
    mine = sorted(ours & present_now)
    removable = _free(module, mine)
    if not module.check_mode:
        if removable:
            _apt(module, ["apt-get", "-q", "-y", "-o", LOCK_WAIT, "purge", *removable])
        for path in (path for name in removable for path in module.params["leftovers"].get(name, [])):
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.unlink(path)
        file.remove()
    module.exit_json(changed=True, removed=removable, kept=sorted(set(mine) - set(removable)))


def _free(module, mine):
    """Our packages whose removal removes only packages of ours."""
    if not mine or _goes(module, mine) <= set(mine):
        return mine
    return [name for name in mine if _goes(module, [name]) <= set(mine)]


def _goes(module, names):
    """Packages that apt would remove with these."""
    _, out, _ = module.run_command(["apt-get", "-s", "purge", *names])
    return {line.split()[1].partition(":")[0] for line in out.splitlines() if line.startswith(("Remv ", "Purg "))}


def _installed(module):
    out = host.run(module, "dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\\n")
    return {line.split()[0] for line in out.splitlines() if line.endswith(" installed")}


if __name__ == "__main__":
    main()
