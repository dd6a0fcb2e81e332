"""Roles of an asynchronous run's processes: TF_CONFIG with its jobs. Standard library only, but where a process serves."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from trainer.common.errors import ClusterError

CHIEF, WORKER, SERVER, EVALUATOR = "chief", "worker", "ps", "evaluator"
"""TensorFlow's names of the jobs: the coordinator, who computes gradients, who keeps the weights, who evaluates snapshots."""
TRAINING = (CHIEF, WORKER, SERVER)
"""The jobs of TensorFlow's cluster: an evaluator is none of its members."""
ROLES = (*TRAINING, EVALUATOR)


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
        if task.role not in cluster or not 0 <= task.index < len(cluster[task.role]) or any(not cluster.get(role) for role in TRAINING):
            needed = ", ".join(TRAINING)
            raise ClusterError(f"TF_CONFIG: {task.role} {task.index} is none of {json.dumps(cluster)}; one each of {needed} is needed")
        return task

    @property
    def training(self) -> dict[str, list[str]]:
        """TensorFlow's cluster."""
        return {role: self.cluster[role] for role in TRAINING}

    @property
    def address(self) -> str:
        """Its own `address:port`."""
        return self.cluster[self.role][self.index]

    def serve(self, threads: int, ready: Callable[[], None] = lambda: None) -> NoReturn:
        """Answer the chief, `ready` from the call of that function on, until this process is ended from outside.

        Raises:
            ClusterError: its port is taken.
        """
        import tensorflow as tf

        from trainer.network.cluster import set_threads

        set_threads(threads)
        try:
            server = tf.distribute.Server(self.training, job_name=self.role, task_index=self.index, protocol="grpc")
        except tf.errors.OpError as error:
            raise ClusterError(f"{self.role} {self.index} can't listen on {self.address}: {error.message}") from None
        print(f"{self.role} {self.index} of {len(self.cluster[self.role])} listens on {server.target}", flush=True)
        ready()
        while True:
            threading.Event().wait()

    def start_server(self, index: int, threads: int, log: Path) -> None:
        """Start the parameter server of this host, which does not outlive this process."""
        argv = [sys.executable, "-m", "trainer", "ps", "--threads", str(threads), "--parent", str(os.getpid())]
        environment = {**os.environ, "TF_CONFIG": json.dumps(tf_config(self.cluster, SERVER, index))}
        with log.open("ab") as stream:
            subprocess.Popen(argv, env=environment, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)


def tf_config(cluster: Mapping[str, Sequence[str]], role: str, index: int) -> dict[str, Any]:
    """TF_CONFIG of one process."""
    return {"cluster": {name: list(addresses) for name, addresses in cluster.items()}, "task": {"type": role, "index": index}}


def of_host(endpoints: Sequence[str], servers: Mapping[int, str], apart: Mapping[int, str], rank: int) -> dict[str, Any]:
    """TF_CONFIG of a host's first process: the chief's on the first host, else a worker's, unless the host is apart.

    Args:
        endpoints: `address:port` of all hosts, by rank.
        servers: those of the parameter servers, by the rank of their host.
        apart: the roles of hosts that neither hand out steps nor compute any, by rank.
        rank: of the host.
    """
    first = {number: apart.get(number, WORKER if number else CHIEF) for number in range(len(endpoints))}
    ranks = {role: [number for number, one in first.items() if one == role] for role in ROLES} | {SERVER: list(servers)}
    where = {role: [servers[one] if role == SERVER else endpoints[one] for one in those] for role, those in ranks.items() if those}
    return tf_config(where, first[rank], ranks[first[rank]].index(rank))
