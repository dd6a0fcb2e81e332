"""Roles of the hosts in a run with parameter servers."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.network.launched_hosts import server_endpoints
from trainer.parameter_server.roles import CHIEF, EVALUATOR, SERVER, WORKER

GROUPS = {SERVER: "parameter_servers", EVALUATOR: "evaluators"}
"""Groups of the inventory, by role."""


def roles(hosts: Sequence[dict[str, Any]]) -> list[str]:
    """Roles of each host in an asynchronous run, by rank, as `chief, ps`; empty for a synchronous one."""
    servers = server_endpoints(hosts)
    first = [host.get("role", WORKER if rank else CHIEF) for rank, host in enumerate(hosts)]
    return [f"{role}, {SERVER}" if rank in servers and role != SERVER else role for rank, role in enumerate(first)] if servers else []


def evaluators(launch: Mapping[str, Any]) -> list[str]:
    """Names of the hosts that evaluate snapshots, given a plan or a record."""
    return _of_role(launch.get("hosts", []), EVALUATOR)


def _of_role(hosts: Sequence[dict[str, Any]], role: str) -> list[str]:
    """Names of the hosts that have a role, among others or alone; none of a synchronous run."""
    return [host["name"] for host, those in zip(hosts, roles(hosts), strict=False) if role in those.split(", ")]
