"""Limits of this process by its control groups, versions 1 and 2. Standard library only: modules of Ansible use it, too."""

from __future__ import annotations

import os
from collections.abc import Sequence


def text(path: str | os.PathLike[str]) -> str | None:
    """A small file's content, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return None


def cgroups(controller: str, base: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> list[str]:
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


def cpu_quota(folders: Sequence[str] | None = None) -> float | None:
    """CPUs allowed by the tightest quota, or None."""
    quotas = []
    for folder in cgroups("cpu") if folders is None else folders:
        quota, _, period = (text(f"{folder}/cpu.max") or "").partition(" ")
        if not quota:
            quota, period = text(f"{folder}/cpu.cfs_quota_us") or "max", text(f"{folder}/cpu.cfs_period_us") or "0"
        if quota not in ("max", "-1"):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def cpus() -> float:
    """CPUs that this process may use: its affinity, reduced by any quota."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, cpu_quota() or cores)
