"""Which process of an asynchronous run does what: TF_CONFIG with the jobs `chief`, `worker` and `ps`. Standard library only."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.errors import ClusterError

CHIEF, WORKER, SERVER = "chief", "worker", "ps"
"""TensorFlow's names of the jobs: the coordinator, who computes gradients, who keeps the weights."""
ROLES = (CHIEF, WORKER, SERVER)


@dataclass(frozen=True)
class Task:
    """One process of the cluster."""

    role: str
    index: int
    """Among those of its role."""
    cluster: dict[str, list[str]]
    """`address:port` of all processes, by role and index."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Task | None":
        """Read TF_CONFIG; None if it describes a synchronous cluster, which has workers only.

        Raises:
            ClusterError: it has no process of that role and index.
        """
        try:
            parsed: dict[str, Any] = json.loads(environment.get("TF_CONFIG", ""))
            if set(parsed["cluster"]) == {WORKER}:
                return None
            cluster = {str(role): [str(address) for address in addresses] for role, addresses in parsed["cluster"].items()}
            task = cls(str(parsed["task"]["type"]), int(parsed["task"]["index"]), cluster)
        except (ValueError, KeyError, TypeError, AttributeError):
            # Whoever reads it for a synchronous cluster says what is wrong.
            return None
        if task.role not in cluster or not 0 <= task.index < len(cluster[task.role]) or any(not cluster.get(role) for role in ROLES):
            needed = ", ".join(ROLES)
            raise ClusterError(f"TF_CONFIG: {task.role} {task.index} is none of {json.dumps(cluster)}; one each of {needed} is needed")
        return task

    @property
    def address(self) -> str:
        """Its own `address:port`."""
        return self.cluster[self.role][self.index]


def tf_config(cluster: Mapping[str, Sequence[str]], role: str, index: int) -> dict[str, Any]:
    """TF_CONFIG of one process."""
    return {"cluster": {name: list(addresses) for name, addresses in cluster.items()}, "task": {"type": role, "index": index}}


def of_host(endpoints: Sequence[str], servers: Sequence[str], rank: int) -> dict[str, Any]:
    """TF_CONFIG of a host's first process: the chief's on the first host, else a worker's.

    Args:
        endpoints: `address:port` of all hosts, by rank.
        servers: those of the parameter servers.
        rank: of the host.
    """
    cluster = {CHIEF: endpoints[:1], WORKER: endpoints[1:], SERVER: servers}
    return tf_config(cluster, WORKER if rank else CHIEF, max(0, rank - 1))


def environment(cluster: Mapping[str, Sequence[str]], role: str, index: int) -> dict[str, str]:
    """This process' environment for another one of the cluster."""
    return {**os.environ, "TF_CONFIG": json.dumps(tf_config(cluster, role, index))}
