"""Facts of a host from the kernel. Standard library only."""

import os
import platform
import re

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


def name():
    """This host's own name, for messages."""
    return os.uname().nodename


def run(module, *argv, hint=""):
    """Run a command, or fail with its output; `hint` says where more is."""
    code, out, error = module.run_command(list(argv))
    if code != 0:
        module.fail_json(msg=f"{name()}: `{' '.join(argv)}` failed: {(error or out).strip()}{hint}")


def enabled(module, unit):
    """Whether systemd starts a unit, given by its name or file, at boot."""
    return module.run_command(["systemctl", "is-enabled", "--quiet", os.path.basename(unit)])[0] == 0


def enable(module, unit):
    """Start a unit, given by its new file, at every boot."""
    run(module, "systemctl", "daemon-reload")
    run(module, "systemctl", "enable", os.path.basename(unit))


def remove_unit(module, unit):
    """Stop a unit and remove its file."""
    run(module, "systemctl", "disable", "--now", os.path.basename(unit))
    os.unlink(unit)
    run(module, "systemctl", "daemon-reload")


def existing(folder):
    """The folder, or the nearest above it that exists."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def text(path):
    """A small file's content, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return None


def cpu_model():
    """The processor's name from the kernel."""
    match = re.search(r"^(?:model name|Model)\s*:\s*(.*)", text("/proc/cpuinfo") or "", re.MULTILINE)
    return match.group(1) if match else platform.machine()


def cgroups(controller, base="/sys/fs/cgroup", own="/proc/self/cgroup"):
    """Folders, of version 1 and 2, whose limits apply to this process: its own, and all above."""
    folders = []
    for line in (text(own) or "").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        for top in [os.path.join(base, controller)] if names else [base, os.path.join(base, "unified")]:
            parts = [part for part in path.split("/") if part]
            folders += [os.path.join(top, *parts[:count]) for count in range(len(parts), -1, -1)]
    return folders


def cpu_quota(folders=None):
    """CPUs allowed by the tightest quota, or None."""
    quotas = []
    for folder in cgroups("cpu") if folders is None else folders:
        quota, _, period = (text(f"{folder}/cpu.max") or "").partition(" ")
        if not quota:
            quota, period = text(f"{folder}/cpu.cfs_quota_us") or "max", text(f"{folder}/cpu.cfs_period_us")
        if quota not in ("max", "-1"):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def cpus():
    """CPUs that this process may use: its affinity, reduced by any quota."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, cpu_quota() or cores)
