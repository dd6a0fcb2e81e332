"""This machine's container engine, podman or docker: its state, queried through its command line."""

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.lab import lab_inventory
from trainer.common.errors import LockstepError

ANSWER_S = 30
PODMAN_NOFILE = 2**20
UNLIMITED = 2**62  # version 1 of the control groups says so with a number near 2**63
IMAGE = "localhost/lockstep-lab"
BASE = "localhost/lockstep-lab-base"


@dataclass(frozen=True)
class Engine:
    """A working engine."""

    name: str

    def ask(self, *arguments: str) -> str:
        """Standard output of one command.

        Raises:
            LockstepError: the command failed; with its last line.
        """
        completed = _run([self.name, *arguments])
        if completed.returncode != 0:
            raise LockstepError(f"{self.name} {' '.join(arguments[:2])}: {lab_inventory.telling_line(completed.stderr.splitlines())}")
        return completed.stdout

    def labs(self) -> list[dict[str, Any]]:
        """Containers of all labs on this machine, including other clones of the project."""
        ids = self.ask("ps", "--all", "--quiet", "--filter", f"label={lab_inventory.OWNER_LABEL}").split()
        inspected = json.loads(self.ask("container", "inspect", *ids)) if ids else []
        return [_as_it_is(lab_inventory.container_facts(each)) for each in inspected]

    def names(self) -> list[str]:
        """Names of all containers."""
        return self.ask("ps", "--all", "--format", "{{.Names}}").split()

    def networks(self) -> list[dict[str, Any]]:
        """All networks."""
        names = self.ask("network", "ls", "--format", "{{.Name}}").split()
        return [lab_inventory.network_facts(each) for each in json.loads(self.ask("network", "inspect", *names))] if names else []

    def images(self) -> list[str]:
        """Name and tag of every image that a lab made."""
        listed = self.ask("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()
        return [name for name in listed if name.rpartition(":")[0] in (IMAGE, BASE)]


def _as_it_is(facts: dict[str, Any], proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> dict[str, Any]:
    """Replace the engine's records with the kernel's state.

    `podman update` does not update the recorded limits, and after a machine was cut off containers are still recorded as
    running.
    """
    if not facts["running"]:
        return facts
    if facts["id"] not in _groups_of(facts["pid"], proc):
        return {**facts, "running": False, "cut_off": True}
    return {**facts, "limits": _enforced_limits(facts["pid"], proc, groups)}


def _groups_of(pid: int, proc: Path) -> str:
    try:
        return _read(proc / str(pid) / "cgroup")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _enforced_limits(pid: int, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """CPU period and quota (microseconds) and memory (bytes) of a process's control group; 0 means no limit."""
    paths = lab_inventory.group_paths((proc / str(pid) / "cgroup").read_text(encoding="utf-8"))
    if "memory" not in paths:
        cpu, memory = (_limited(groups, paths[""], name) for name in ("cpu.max", "memory.max"))
        quota, period = _read(cpu / "cpu.max").split() if cpu else ("0", "100000")
        return [int(period), int(quota), int(_read(memory / "memory.max")) if memory else 0]
    cpu = _limited(groups / "cpu", paths["cpu"], "cpu.cfs_quota_us")
    memory = _limited(groups / "memory", paths["memory"], "memory.limit_in_bytes")
    shares = [int(_read(cpu / f"cpu.cfs_{name}_us")) for name in ("period", "quota")] if cpu else [100_000, 0]
    return [*shares, int(_read(memory / "memory.limit_in_bytes")) if memory else 0]


def _limited(top: Path, path: str, name: str) -> Path | None:
    """The nearest group with a limit, going up: a node's first process may be in a group below its container's."""
    for folder in (top / path, *(top / path).parents):
        if folder == top:
            break
        limit = _read(folder / name).split()[0] if (folder / name).is_file() else "max"
        if limit not in ("max", "-1") and int(limit) < UNLIMITED:
            return folder
    return None


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def find() -> Engine | None:
    """The engine to use: podman, or docker if its engine answers, or None.

    Raises:
        LockstepError: podman is installed but does not work, and neither does docker.
    """
    refused = ""
    for name in ("podman", "docker"):
        if shutil.which(name):
            completed = _run([name, "info"])
            if completed.returncode == 0:
                return Engine(name)
            refused = refused or (f"podman info: {lab_inventory.telling_line(completed.stderr.splitlines())}" if name == "podman" else "")
    if refused:
        raise LockstepError(f"the lab needs containers, and podman does not work here: {refused}")
    return None


def missing_packages(engine: Engine | None, builds: bool) -> list[str]:
    """Debian packages that the lab needs, also to build an image, and this machine lacks."""
    packages = [] if engine else ["podman", "runc"]
    if engine and engine.name == "podman" and _needs_runc() and not shutil.which("runc"):
        packages.append("runc")
    return packages + (["debootstrap"] if builds and not shutil.which("debootstrap") else [])


def may_install(release: Mapping[str, str]) -> bool:
    """Return whether this machine's packages come from apt."""
    kinds = {release.get("ID"), *release.get("ID_LIKE", "").split()}
    return bool(kinds & {"debian", "ubuntu"}) and shutil.which("apt-get") is not None


def needed_conf() -> str:
    """The containers.conf that podman needs on this machine, or an empty string."""
    if "CONTAINERS_CONF" in os.environ:
        return ""
    files, processes = (resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    return lab_inventory.containers_conf(files, processes, _may_raise(files), _needs_runc())


def _may_raise(hard: int) -> bool:
    if hard == resource.RLIM_INFINITY or hard >= PODMAN_NOFILE:
        return True
    limit = f"--nofile={PODMAN_NOFILE}:{PODMAN_NOFILE}"
    return subprocess.run(["prlimit", limit, "true"], capture_output=True, check=False).returncode == 0


def _needs_runc(groups: Path = Path("/sys/fs/cgroup")) -> bool:
    """Return whether control groups of versions 1 and 2 are mixed, which crun refuses."""
    return (groups / "memory").is_dir()


def routes() -> list[dict[str, Any]]:
    """This machine's routes; empty if `ip` is missing."""
    if not shutil.which("ip"):
        return []
    completed = _run(["ip", "-4", "-j", "route"])
    return list(json.loads(completed.stdout)) if completed.returncode == 0 else []


def apt_answer(*argv: str) -> str:
    """Standard output of one of apt's tools; empty if this machine has none."""
    return _run(list(argv)).stdout if shutil.which(argv[0]) else ""


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except subprocess.TimeoutExpired:
        raise LockstepError(f"{' '.join(argv[:3])}: no answer in {ANSWER_S} s") from None
