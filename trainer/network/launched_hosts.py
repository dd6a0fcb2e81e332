"""The hosts of a launch, as its record (`cluster.json`) or plan lists them: where their processes listen, and their roles."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.network import member

PORTS = ("port", "direct_port", "server_port")
"""TensorFlow's port, the port to which other workers connect to send gradients, and that of a parameter server, if the host has one."""


def posts(launch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The hosts of a launch, given its plan or record: its workers, by rank, then its spares."""
    return [*launch.get("hosts", []), *launch.get("spares", [])]


def endpoint(host: Mapping[str, Any], kind: str = "port") -> str:
    """`address:port` for one of a host's ports; IPv6 addresses in brackets."""
    return member.endpoint(str(host["address"]), host[kind])


def ports(host: Mapping[str, Any]) -> list[int]:
    """The TCP ports of a host's worker."""
    return [int(host[kind]) for kind in PORTS if kind in host]


def peers(hosts: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Where the hosts' workers, and their supervisors, listen for each other, by rank."""
    return [(str(host["address"]), int(host["direct_port"])) for host in hosts]


def server_endpoints(hosts: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Where the parameter servers of an asynchronous run listen, by the rank of their host."""
    return {rank: endpoint(host, "server_port") for rank, host in enumerate(hosts) if "server_port" in host}


def apart(hosts: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """The roles of hosts of an asynchronous run that neither hand out steps nor compute any, by rank."""
    return {rank: host["role"] for rank, host in enumerate(hosts) if "role" in host}
