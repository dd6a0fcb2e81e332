"""The nodes of this project's lab, as root outside of SSH: commands on them, their limits, and what disturbs them."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from control.common.project import ROOT
from control.lab.containers import Engine, find
from control.lab.lab_inventory import CPU_PERIOD_US, OWNER_LABEL, owner
from trainer.common.errors import LockstepError


@dataclass(frozen=True)
class Lab:
    """The lab's nodes, by name of the worker."""

    engine: Engine
    containers: dict[str, str]
    cpus: float

    def on(self, host: str, *command: str, detach: bool = False) -> str:
        """Run a command on a node."""
        return self.engine.ask("exec", *(["--detach"] if detach else []), self.containers[host], *command)

    def limit(self, host: str, *options: str) -> None:
        """Change the limits of a node."""
        self.engine.ask("update", *options, self.containers[host])

    def limit_cpus(self, host: str, cpus: float) -> None:
        """Give a node a share of the CPUs, in the lab's own periods: in podman's own, a node's pauses are long."""
        self.limit(host, f"--cpu-period={CPU_PERIOD_US}", f"--cpu-quota={round(cpus * CPU_PERIOD_US)}")

    @contextlib.contextmanager
    def half_the_cpus(self, host: str) -> Iterator[None]:
        """The node may use half of its CPUs."""
        self.limit_cpus(host, self.cpus / 2)
        try:
            yield
        finally:
            self.limit_cpus(host, self.cpus)

    @contextlib.contextmanager
    def link(self, host: str, rate: str) -> Iterator[None]:
        """The node sends at that rate, as `tc` writes it."""
        self.on(host, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "16kb", "latency", "100ms")
        try:
            yield
        finally:
            self.on(host, "tc", "qdisc", "del", "dev", "eth0", "root")

    @contextlib.contextmanager
    def memory(self, host: str, room: int) -> Iterator[None]:
        """The node has that many bytes beside those of its processes, or twice as many, until the kernel can give back all others."""
        statistics = dict(line.split() for line in self.on(host, "sh", "-c", MEMORY).splitlines())
        self._squeeze(host, int(statistics.get("total_rss") or statistics["anon"]), room)
        try:
            yield
        finally:
            self.limit(host, "--memory=3g", "--memory-swap=6g")

    def _squeeze(self, host: str, processes: int, room: int) -> None:
        for size in (processes + room * 2**doubled for doubled in range(TRIES)):
            with contextlib.suppress(LockstepError):
                return self.limit(host, f"--memory={size}", f"--memory-swap={size}")
        raise LockstepError(f"{host}: the kernel does not take {size:,} bytes as its limit of memory")


TRIES = 6
"""Limits of memory that are tried."""
MEMORY = "cat /sys/fs/cgroup/memory/memory.stat 2>/dev/null || cat /sys/fs/cgroup/memory.stat"


def nodes(cpus: float) -> Lab:
    """This project's lab, whose nodes have `cpus` CPUs each; LockstepError if no lab runs."""
    engine = find()
    mine = [one for one in engine.labs() if one["running"] and one["labels"][OWNER_LABEL] == owner(str(ROOT))] if engine else []
    if engine is None or not mine:
        raise LockstepError("no lab of this project is running here: ansible-playbook lab.yml -e cpus=0.3; then provision.yml")
    return Lab(engine, {one["container"].rpartition("-")[2]: one["container"] for one in mine}, cpus)


def nodes_of_script(cpus: float) -> Lab:
    """Like `nodes`, for a script, which ends with the error's words."""
    try:
        return nodes(cpus)
    except LockstepError as error:
        sys.exit(str(error))
