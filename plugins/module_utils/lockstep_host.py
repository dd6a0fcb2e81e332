"""A host: its kernel, processes and mounts, and commands there. Standard library only."""

import json
import os
import platform
import re
import time

from ansible.module_utils import lockstep_cgroup
from ansible.module_utils import lockstep_files as files

cgroups, cpu_quota, cpus, text = lockstep_cgroup.cgroups, lockstep_cgroup.cpu_quota, lockstep_cgroup.cpus, lockstep_cgroup.text

VERSIONS = """
import importlib.metadata, json, platform, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"python": platform.python_version(), "packages": found, "executable": sys.executable}))
"""
"""For another Python (`-c`, then package names): prints its version, which of the packages it has, and its path."""

SECURE_ACCESS = "/var/lib/glusterd/secure-access"
"""GlusterFS daemons and mounts use TLS for management where this file exists."""


def name():
    """This host's own name, for messages."""
    return os.uname().nodename


class Change:
    """Base of the modules that change a host: a method for each state."""

    def __init__(self, module):
        self.module, self.params = module, module.params

    def act(self):
        """Bring about the state that the task asks for; its name is a method's."""
        getattr(self, self.params["state"])()

    def end(self, did, **returned):
        """End with the steps that were taken, or would be in check mode."""
        self.module.exit_json(changed=bool(did), did=did, **returned)

    def fail(self, message):
        """End with a message about this host."""
        self.module.fail_json(msg=f"{name()}: {message}")

    def run(self, *argv, hint=""):
        """Output of a command; fails with it; `hint` says where more is."""
        code, out, error = self.module.run_command(list(argv))
        if code != 0:
            self.fail(f"`{' '.join(argv)}` failed: {(error or out).strip()}{hint}")
        return out

    def enabled(self, unit):
        """Return whether systemd starts a unit at boot."""
        return self.module.run_command(["systemctl", "is-enabled", "--quiet", unit])[0] == 0


class Unit:
    """A systemd unit that a module makes: a file, started at every boot."""

    def __init__(self, change, path):
        self.change, self.path, self.name = change, path, os.path.basename(path)

    def has(self, text):
        """Return whether this is the unit's text, and systemd starts it at boot."""
        return files.read(self.path) == text and self.change.enabled(self.name)

    def install(self, text):
        """Write the unit, and start it at every boot."""
        files.replace(self.path, text)
        self.change.run("systemctl", "daemon-reload")
        self.change.run("systemctl", "enable", self.name)

    def remove(self, stop=True):
        """Remove the unit, and stop what it has started."""
        self.change.run("systemctl", "disable", *(["--now"] if stop else []), self.name)
        os.unlink(self.path)
        self.change.run("systemctl", "daemon-reload")


def existing(folder):
    """The folder, or the nearest above it that exists."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def versions(module, python, packages):
    """Output of VERSIONS in a Python; or `error`, the reason why there is none."""
    if os.path.isdir(python) or not os.access(python, os.X_OK):
        return {"error": "is not a program" if os.path.exists(python) else "is missing"}
    code, out, error = module.run_command([python, "-c", VERSIONS, *packages])
    if code != 0:
        return {"error": f"does not run: {error.strip()[-300:]}"}
    try:
        answer = json.loads(out)
    except ValueError:
        answer = None
    complete = isinstance(answer, dict) and {"python", "packages"} <= answer.keys()
    return answer if complete else {"error": f"does not answer like Python: {out.strip()[:80]}"}


def cpu_model():
    """The processor's name from the kernel."""
    match = re.search(r"^(?:model name|Model)\s*:\s*(.*)", text("/proc/cpuinfo") or "", re.MULTILINE)
    return match.group(1) if match else platform.machine()


def mount_of(path, table=None):
    """Mount point, file system type and source of a path (absolute, without links), from the text of mountinfo."""
    best = ("", "", "")
    for line in (table or text("/proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        point, kind, source = map(unescaped, (left.split()[4], *right.split()[:2]))
        if (path + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
            best = (point, kind, source)
    return best


def unescaped(word):
    """A word of mountinfo or fstab with its octal escapes resolved."""
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape.group(1), 8)), word)


def running(chosen):
    """Ids of this host's own processes, not those in containers, whose command line satisfies `chosen`, a function of its words."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _own(entry) and chosen(words(entry))]


def _own(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def words(pid):
    """The command line of a process; one empty word if it is gone or hidden from us."""
    return (text(f"/proc/{pid}/cmdline") or "").split("\0")


def parent(pid):
    """Id of a process's parent, as text; empty if the process is gone."""
    return ((text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split() or ["", ""])[1]


def older(pids, path):
    """Processes that started before a file was written, and so have not read its content."""
    return [pid for pid in pids if os.path.exists(path) and _started(pid) < os.path.getmtime(path) - 0.1]


def _started(pid):
    """Seconds since 1970; for a process that has gone, late enough never to be older."""
    fields = (text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    if not fields:
        return float("inf")
    return time.time() - float(text("/proc/uptime").split()[0]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
