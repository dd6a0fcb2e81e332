"""Place of a process in a cluster: TF_CONFIG, the format of TensorFlow's `TFConfigClusterResolver`, written and read."""

import ipaddress
import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.common.errors import ClusterError


@dataclass(frozen=True)
class Member:
    """One worker of the cluster."""

    rank: int
    addresses: list[str]
    """`address:port` of all workers, by rank."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Member":
        """Read TF_CONFIG; ClusterError if it is missing, is not JSON, or has no worker of that index."""
        text = environment.get("TF_CONFIG", "")
        try:
            parsed: dict[str, Any] = json.loads(text)
            workers, task = parsed["cluster"]["worker"], parsed["task"]
            member = cls(int(task["index"]), [str(address) for address in workers])
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterError(f"TF_CONFIG={text!r}: expected {{cluster: {{worker: [...]}}, task: {{type, index}}}} ({error!r})") from None
        if task["type"] != "worker" or not 0 <= member.rank < member.workers:
            raise ClusterError(f"TF_CONFIG: task {task} is none of the {member.workers} workers")
        return member

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.addresses)

    @property
    def hosts(self) -> list[str]:
        """Addresses of all workers, without ports."""
        return [address(one)[0] for one in self.addresses]

    @property
    def on_one_machine(self) -> bool:
        """True if there is no network between the workers."""
        return one_machine(self.hosts)

    @property
    def is_chief(self) -> bool:
        """True if this worker writes snapshots, events and the summary."""
        return self.rank == 0


def one_machine(hosts: Sequence[str]) -> bool:
    """Return whether all these addresses are loopback addresses."""
    return all(map(_is_loopback, hosts))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def named(hosts: Sequence[str], ranks: Iterable[int]) -> str:
    """Workers as the user knows them: `rank 1 (node2), rank 2 (node3)`."""
    return ", ".join(f"rank {rank} ({hosts[rank]})" for rank in ranks)


def endpoint(address: str, port: object) -> str:
    """`address:port`; IPv6 addresses in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def family(address: str) -> socket.AddressFamily:
    """Family of sockets for an address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def address(endpoint: str) -> tuple[str, int]:
    """Host and port of an endpoint."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def tf_config(endpoints: Sequence[str], rank: int) -> dict[str, Any]:
    """TF_CONFIG of one worker; `endpoints` are those of all workers, by rank."""
    return {"cluster": {"worker": list(endpoints)}, "task": {"type": "worker", "index": rank}}
