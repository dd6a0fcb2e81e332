"""Load of this host besides the worker's own computing: counters of the kernel, and their change over an epoch.

Reads /proc, /sys, the worker's control groups and TCP_INFO of its connections, with the standard library; what a host does not have
counts as 0. A sample takes less than a millisecond.
"""

import os
import re
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from trainer.host import cgroup

MOST = 2**31 - 1
"""Workers exchange 32-bit integers."""
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
CPU_TIMES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
BUSY = ("user", "nice", "system", "irq", "softirq")
TCP_INFO = struct.Struct("@8B24I4Q6I2Q")
"""Linux's `struct tcp_info` up to `tcpi_busy_time` (include/uapi/linux/tcp.h)."""
RETRANSMITS, MIN_RTT, SEGMENTS, RATE = 31, 39, 36, 42
"""Places in it: all retransmitted segments, the shortest round trip (us), segments sent, bytes/s delivered at best."""


@dataclass(frozen=True)
class Sample:
    """Counters since the host or the process started."""

    at: float
    """Seconds of a clock."""
    own: float
    """Seconds of CPU time of this process."""
    group: float
    """Seconds of CPU time of all processes under the tightest CPU limit; without a limit, of the whole host."""
    steal: float
    """Seconds in which the host's CPUs ran other virtual machines."""
    heat: int
    """How often a CPU was slowed because of its temperature."""
    swapped: int
    """Pages that were read from swap."""
    faults: int
    """Pages of this process that were read from disk."""
    segments: int
    """TCP segments sent to the other workers."""
    retransmits: int
    """TCP segments sent again."""


@dataclass(frozen=True)
class Load:
    """Load of the host in an interval, in whole numbers: a row of the table that workers gather."""

    own_us: int = 0
    """Median of a step's own work, microseconds; 0 if no step was profiled."""
    input_us: int = 0
    """The wait for images in it."""
    limit: int = 0
    """CPUs that the worker may use, in thousandths."""
    others: int = 0
    """CPUs that other processes used, in thousandths."""
    steal: int = 0
    """CPUs that other virtual machines took, in thousandths."""
    clock: int = 0
    """The slowest CPU's clock in thousandths of its highest; 0 if unknown."""
    heat: int = 0
    """How often a CPU was slowed because of its temperature."""
    swapped: int = 0
    """Pages read from swap per second."""
    faults: int = 0
    """Pages of the worker read from disk per second."""
    memory: int = 0
    """Memory that programs use, in thousandths of the limit."""
    rate: int = 0
    """Bytes per second over this worker's best connection, in thousands; 0 if unknown."""
    lost: int = 0
    """Segments sent again, in thousandths."""
    reduced_us: int = 0
    """Median of a step's all-reduce, with the wait for the others in it, microseconds."""

    def row(self) -> list[int]:
        """All numbers, in order; none larger than an exchange of 32-bit integers takes."""
        return [max(0, min(MOST, getattr(self, field.name))) for field in fields(self)]


def links(connections: Sequence[socket.socket]) -> list[socket.socket]:
    """The connections that leave this host: the rate of others is that of its memory, and varies with what else runs."""

    def leaves(connection: socket.socket) -> bool:
        try:
            return bool(connection.getsockname()[0] != connection.getpeername()[0])
        except OSError:  # the peer has gone
            return False

    return list(filter(leaves, connections))


def sample(connections: Sequence[socket.socket] = (), proc: Path = Path("/proc"), system: Path = Path("/sys")) -> Sample:
    """The counters now; `connections` are this worker's to the others."""
    counters = [tcp(connection) for connection in connections]
    limit = limiting("cpu")
    return Sample(
        time.monotonic(),
        time.process_time(),
        cpu_seconds(limit, proc),
        _cpu_times(proc).get("steal", 0.0),
        sum(_number(file) for file in (system / "devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count")),
        _field(proc / "vmstat", "pswpin"),
        _major_faults(proc),
        sum(info[SEGMENTS] for info in counters if info),
        sum(info[RETRANSMITS] for info in counters if info),
    )


def between(before: Sample, after: Sample, step: Load, connections: Sequence[socket.socket] = (), system: Path = Path("/sys")) -> Load:
    """The load between two samples, with the times of the worker's `step`."""
    seconds = max(1e-3, after.at - before.at)
    others = max(0.0, after.group - before.group - (after.own - before.own))
    sent = after.segments - before.segments
    return replace(
        step,
        limit=round(1000 * cgroup.cpus()),
        others=round(1000 * others / seconds),
        steal=round(1000 * (after.steal - before.steal) / seconds),
        clock=clock(system),
        heat=after.heat - before.heat,
        swapped=round((after.swapped - before.swapped) / seconds),
        faults=round((after.faults - before.faults) / seconds),
        memory=memory_in_use(),
        rate=max((info[RATE] // 1000 for info in map(tcp, connections) if info), default=0),
        lost=round(1000 * (after.retransmits - before.retransmits) / sent) if sent > 0 else 0,
    )


def limiting(controller: str) -> Path | None:
    """The control group, this process's own or one above, with the tightest CPU or memory limit; None without any."""
    limits = {folder: _limit(controller, folder) for folder in map(Path, cgroup.cgroups(controller)) if folder.is_dir()}
    limited = {folder: limit for folder, limit in limits.items() if limit is not None}
    return min(limited, key=lambda folder: limited[folder]) if limited else None


def _limit(controller: str, folder: Path) -> float | None:
    if controller == "cpu":
        return cgroup.cpu_quota([str(folder)])
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = cgroup.text(folder / name)
        if text and text.isdecimal() and int(text) < 2**60:
            return float(text)
    return None


def cpu_seconds(limit: Path | None, proc: Path = Path("/proc")) -> float:
    """CPU seconds that all processes of a control group used; those of the host if there is no group, or it does not count them."""
    if limit is not None:
        for file, name, unit in ((limit / "cpu.stat", "usage_usec", 1e6), (_accounting(limit) / "cpuacct.usage", "", 1e9)):
            used = _field(file, name) if name else _number(file)
            if used:
                return used / unit
    times = _cpu_times(proc)
    return sum(times.get(name, 0.0) for name in BUSY)


def _accounting(limit: Path) -> Path:
    """Path of the group under the controller `cpuacct`, in version 1."""
    return Path(re.sub(r"/cpu(/|$)", r"/cpuacct\1", str(limit), count=1))


def memory_in_use(proc: Path = Path("/proc")) -> int:
    """Memory that programs use, in thousandths of the tightest limit: a control group's, else the host's.

    Files that they have mapped count: where these do not fit, each use reads them again.
    """
    group = limiting("memory")
    limit = _limit("memory", group) if group else None
    if group is None or not limit:
        total = _field(proc / "meminfo", "MemTotal:")
        return round(1000 * (1 - _field(proc / "meminfo", "MemAvailable:") / total)) if total else 0
    statistics = group / "memory.stat"
    own = _field(statistics, "anon") or _field(statistics, "total_rss")
    mapped = _field(statistics, "file_mapped") or _field(statistics, "total_mapped_file")
    return round(1000 * (own + mapped) / limit)


def clock(system: Path = Path("/sys")) -> int:
    """The slowest CPU's clock in thousandths of its highest; 0 if the host does not say."""
    shares = []
    for folder in (system / "devices/system/cpu").glob("cpu[0-9]*/cpufreq"):
        highest, now = _number(folder / "cpuinfo_max_freq"), _number(folder / "scaling_cur_freq")
        if highest and now:
            shares.append(round(1000 * now / highest))
    return min(shares, default=0)


def tcp(connection: socket.socket) -> tuple[int, ...] | None:
    """TCP_INFO of a connection as numbers; None where the kernel knows fewer of them."""
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
    except OSError:
        return None
    return TCP_INFO.unpack(raw) if len(raw) == TCP_INFO.size else None


def _cpu_times(proc: Path) -> dict[str, float]:
    line = (cgroup.text(proc / "stat") or "").partition("\n")[0].split()[1:]
    return {name: int(ticks) / CLOCK_TICKS for name, ticks in zip(CPU_TIMES, line, strict=False)}


def _major_faults(proc: Path) -> int:
    rest = (cgroup.text(proc / "self/stat") or "").rpartition(")")[2].split()
    return int(rest[9]) if len(rest) > 9 else 0


def _field(file: Path, name: str) -> int:
    """The number after a name in a file of names and numbers; 0 if it is missing."""
    match = re.search(rf"^{re.escape(name)}\s+(\d+)", cgroup.text(file) or "", re.MULTILINE)
    return int(match.group(1)) if match else 0


def _number(file: Path) -> int:
    text = cgroup.text(file) or ""
    return int(text) if text.isdecimal() else 0
