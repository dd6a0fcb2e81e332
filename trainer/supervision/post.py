"""Assignment of a supervisor: its worker, its launch, and its limits for waiting."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainer.common.files import read_secret
from trainer.host import claims
from trainer.rundir.launch_record import LaunchRecord, apart, peers, server_endpoints
from trainer.supervision import rendezvous
from trainer.supervision.child import Patience
from trainer.supervision.restart_policy import Elasticity, Limits


@dataclass(frozen=True)
class Post:
    """Assignment of a supervisor in its launch."""

    folder: Path
    """The worker's part of the run directory."""
    rank: int
    """Rank in the launch, like all ranks here. A generation's workers are numbered in the same order, without lost ones."""
    hosts: Sequence[str]
    """Names of all workers, by rank, then of spares."""
    workers: int
    """Number of hosts that train; later hosts are spares."""
    endpoints: Sequence[str]
    """`address:port` of all hosts' workers for TensorFlow, by rank."""
    peers: Sequence[rendezvous.Address]
    """Addresses on which all hosts listen for each other, by rank."""
    secret: bytes
    launch: str
    """Identity of the launch: files of an earlier launch do not count."""
    program: Sequence[str]
    """Beginning of a worker's command line, `python -m trainer`."""
    worker: Sequence[str]
    """The worker's arguments, to which the generation is added."""
    standby: Sequence[str]
    """Command line of a process that forks the next worker; empty: a worker is only started when needed."""
    session: Sequence[str]
    """Command that starts this supervisor's tmux session again; empty: the session is not started again."""
    limits: Limits
    patience: Patience
    rejoin_wait: float
    """Seconds within which all supervisors must meet after a fault."""
    elastic: Elasticity | None = None
    """Condition under which the others go on without a host; None: never."""
    servers: Mapping[int, str] | None = None
    """`address:port` of the parameter servers of an asynchronous run, by the rank of their host; None: a synchronous run."""
    apart: Mapping[int, str] = field(default_factory=dict)
    """Roles of hosts that neither distribute nor compute steps, by rank."""

    @classmethod
    def read(cls, run: Path, name: str, worker: Sequence[str]) -> "Post":
        """The post of a host's supervisor, from the launch's record in the run directory; `worker`: arguments of its worker."""
        record = LaunchRecord.read(run)
        hosts, recovery = record.posts, record.recovery
        names, folder = [host.name for host in hosts], run / "workers" / name
        rank, python = names.index(name), [sys.executable, "-m"]
        own = hosts[rank]
        return cls(
            folder=folder,
            rank=rank,
            hosts=names,
            workers=len(record.hosts),
            endpoints=[host.endpoint() for host in hosts],
            peers=peers(hosts),
            secret=read_secret(folder),
            launch=record.launch,
            program=[*python, "trainer"],
            worker=worker,
            standby=[*python, "trainer.host.fork_server"] if recovery["standby"] else [],
            session=claims.session_command(claims.session_name(record.run, rank, own.root), str(folder)),
            limits=Limits(recovery["max_restarts"], recovery["max_restarts_per_hour"]),
            patience=Patience(float(own.silence or 0), recovery["hang"]),
            rejoin_wait=recovery["rejoin_wait"],
            elastic=Elasticity(recovery["elastic_wait"], recovery["min_workers"]) if recovery["elastic"] else None,
            servers=server_endpoints(hosts) or None,
            apart=apart(hosts),
        )
