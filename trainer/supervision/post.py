"""A supervisor's post: which worker of which launch it is responsible for, and how long it waits."""

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
    """In the launch, as all ranks here. The workers of a generation are numbered in the same order, without those that are lost."""
    hosts: Sequence[str]
    """Names of all workers, by rank; those of spares follow."""
    workers: int
    """How many train; the hosts after them are spares."""
    endpoints: Sequence[str]
    """`address:port` of all hosts' workers for TensorFlow, by rank."""
    peers: Sequence[rendezvous.Address]
    """Where all hosts listen for each other, by rank."""
    secret: bytes
    launch: str
    """Identifies the launch: what an earlier one left does not count."""
    program: Sequence[str]
    """How a worker's command line begins, `python -m trainer`."""
    worker: Sequence[str]
    """Its arguments, to which the generation is added."""
    standby: Sequence[str]
    """The command line of a process that becomes the next worker; empty: a worker is started when it is needed."""
    session: Sequence[str]
    """The command that starts this supervisor's tmux session again; empty: it is not started again."""
    limits: Limits
    patience: Patience
    rejoin_wait: float
    """Seconds within which all supervisors must come together after a fault."""
    elastic: Elasticity | None = None
    """When the others go on without a host; None: never."""
    servers: Mapping[int, str] | None = None
    """`address:port` of the parameter servers of an asynchronous run, by the rank of their host; None: a synchronous run."""
    apart: Mapping[int, str] = field(default_factory=dict)
    """The roles of its hosts that neither hand out steps nor compute any, by rank."""

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
            standby=[*python, "trainer.supervision.standby_process"] if recovery["standby"] else [],
            session=claims.session_command(claims.session_name(record.run, rank, own.root), str(folder)),
            limits=Limits(recovery["max_restarts"], recovery["max_restarts_per_hour"]),
            patience=Patience(float(own.silence or 0), recovery["hang"]),
            rejoin_wait=recovery["rejoin_wait"],
            elastic=Elasticity(recovery["elastic_wait"], recovery["min_workers"]) if recovery["elastic"] else None,
            servers=server_endpoints(hosts) or None,
            apart=apart(hosts),
        )
