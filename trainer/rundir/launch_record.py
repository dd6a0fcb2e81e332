"""The hosts of a launch and its record, `cluster.json` in the run directory: written by the control node, read by supervisors, too."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from trainer.common.files import read_json
from trainer.common.plain_values import from_plain
from trainer.network import member

RECORD = "cluster.json"
PORTS = ("port", "direct_port", "server_port")
"""TensorFlow's port, the port to which other workers connect to send gradients, and that of a parameter server, if the host has one."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host of a run: as the inventory names it; once planned, with its ports; once launched, with what it reported."""

    ALWAYS: ClassVar = ("name",)
    rank: int | None = None
    name: str
    address: str = ""
    port: int = 0
    """0, until one is chosen."""
    direct_port: int | None = None
    server_port: int | None = None
    port_chosen: bool = False
    """The ports are chosen for each launch."""
    role: str = ""
    """Only of a host of an asynchronous run that neither hands out steps nor computes any."""
    batch_size: Any = None
    gpus: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of its worker's environment."""
    threads: int | None = None
    tf_config: dict[str, Any] | None = None
    root: str = ""
    """Its `worker_root`."""
    silence: float | None = None
    """Seconds without a heartbeat after which its worker counts as silent."""
    python: str = ""
    """Version of its Python; this and the following are the host's answer at the launch."""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions by package."""
    machine: str = ""
    cpu: str = ""
    cpus: float | None = None
    """Processors that it may use, by its quota, too."""
    cores: int | None = None
    """Whole processors, at least 1."""
    executable: str = ""

    @property
    def label(self) -> str:
        """Its name and address, for records that outlive an inventory: two inventories may both have a node01."""
        return f"{self.name} {self.address}"

    @property
    def ports(self) -> list[int]:
        """The TCP ports of its worker."""
        return [int(port) for port in (self.port, self.direct_port, self.server_port) if port is not None]

    def endpoint(self, kind: str = "port") -> str:
        """`address:port` for one of its ports; IPv6 addresses in brackets."""
        return member.endpoint(str(self.address), getattr(self, kind))


def peers(hosts: Sequence[Host]) -> list[tuple[str, int]]:
    """Where the hosts' workers, and their supervisors, listen for each other, by rank."""
    return [(str(host.address), int(host.direct_port or 0)) for host in hosts]


def server_endpoints(hosts: Sequence[Host]) -> dict[int, str]:
    """Where the parameter servers of an asynchronous run listen, by the rank of their host."""
    return {rank: host.endpoint("server_port") for rank, host in enumerate(hosts) if host.server_port is not None}


def apart(hosts: Sequence[Host]) -> dict[int, str]:
    """The roles of hosts of an asynchronous run that neither hand out steps nor compute any, by rank."""
    return {rank: host.role for rank, host in enumerate(hosts) if host.role}


def training(hosts: Sequence[Host]) -> list[Host]:
    """The hosts that train: all but those of an asynchronous run that only keep weights, or only evaluate."""
    return [host for host in hosts if not host.role]


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """The content of `cluster.json`. Of a run that was never launched, or in an older file, what is not there has its default."""

    ALWAYS: ClassVar = (
        *("run", "id", "entered_at", "launched_at", "created_at", "revision", "dataset", "code", "code_sha256"),
        *("counts", "parameters", "compiled", "kept", "hosts"),
    )
    run: str = ""
    id: str = ""
    """Constant through all launches of a run; a later run of the same name has another."""
    entered_at: float | None = None
    """The command's start; the plan, the look at the hosts and the copies come before `launched_at`."""
    launched_at: float = 0.0
    created_at: str = ""
    revision: str | None = None
    dataset: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    code_sha256: str = ""
    counts: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    compiled: dict[str, Any] | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    recovery: dict[str, Any] = field(default_factory=dict)
    """The configuration's section; empty for a script."""
    script: dict[str, Any] = field(default_factory=dict)
    ticket: str = ""
    hosts: Sequence[Host] = field(default_factory=list)
    """Workers, by rank."""
    spares: Sequence[Host] = field(default_factory=list)
    failed_before: dict[str, Any] | None = None
    """How the previous launch failed: a worker's own summary.json replaces the one that says so."""
    launch: str = ""
    """Identifier of the launch, 32 hex digits; empty for a job of Slurm."""
    slurm: dict[str, Any] = field(default_factory=dict)
    """The folder of the run's Slurm jobs; `job`, the last one's number, and `told`, once its end was reported."""

    @classmethod
    def read(cls, run: Path | None) -> "LaunchRecord":
        """The record in a run directory; an empty one of a run that was never launched."""
        return from_plain(cls, read_json(run / RECORD)) if run is not None and (run / RECORD).is_file() else cls()

    def __bool__(self) -> bool:
        """Return whether the run was launched."""
        return self != LaunchRecord()

    @property
    def posts(self) -> list[Host]:
        """Its workers, by rank, then its spares."""
        return [*self.hosts, *self.spares]
