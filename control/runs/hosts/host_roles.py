"""Roles of the hosts in a run with parameter servers."""

from collections.abc import Sequence

from trainer.parameter_server.roles import CHIEF, EVALUATOR, SERVER, WORKER
from trainer.rundir.launch_record import Host, server_endpoints

GROUPS = {SERVER: "parameter_servers", EVALUATOR: "evaluators"}
"""Groups of the inventory, by role."""


def roles(hosts: Sequence[Host]) -> list[str]:
    """Roles of each host in an asynchronous run, by rank, as `chief, ps`; empty for a synchronous run."""
    servers = server_endpoints(hosts)
    first = [host.role or (WORKER if rank else CHIEF) for rank, host in enumerate(hosts)]
    return [f"{role}, {SERVER}" if rank in servers and role != SERVER else role for rank, role in enumerate(first)] if servers else []


def evaluators(hosts: Sequence[Host]) -> list[str]:
    """Names of the hosts that evaluate snapshots."""
    return of_role(hosts, EVALUATOR)


def of_role(hosts: Sequence[Host], role: str) -> list[str]:
    """Names of the hosts that have a role, alone or with others; empty for a synchronous run."""
    return [host.name for host, those in zip(hosts, roles(hosts), strict=False) if role in those.split(", ")]
