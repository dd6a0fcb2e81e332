"""Hosts import TensorFlow while the plan of their run is still made: a process on each, from which its workers are forked.

Whatever goes wrong here costs only time: a worker that finds no such process imports TensorFlow itself.
"""

import base64
import contextlib
import hashlib
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from control.common import worker_environment
from control.common.operator_variables import boolean
from control.common.task import Task
from control.remote import modules
from control.remote.trainer_package import TRAINER
from trainer.host import fork_server
from trainer.rundir.launch_record import Host
from trainer.worker.backend import LIBRARIES

PROGRAM = Path(fork_server.__file__)


def key(program: Mapping[str, Any]) -> str:
    """Name of the server for a host's workers with the same `python`, folder of `caches` and trainer (`sha256`)."""
    parts = program["python"], program["caches"], program["sha256"], PROGRAM.read_text(encoding="utf-8")
    return fork_server.NAME + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass
class Server:
    """The process on one host."""

    action: Any
    """An action on the host."""
    session: dict[str, Any]
    """Arguments of the module `tmux_session` that start it."""
    started: bool = field(default=False, init=False)

    def start(self) -> None:
        """Start it, unless it runs."""
        with contextlib.suppress(Exception):
            self.started = bool(modules.execute(self.action, "tmux_session", self.session).get("changed"))

    def end(self) -> None:
        """End it if `start` has started it."""
        if self.started:
            with contextlib.suppress(Exception):
                modules.execute(self.action, "tmux_session", {"name": self.session["name"], "state": "absent", "grace": 0})


@contextlib.contextmanager
def preloading(task: Task, hosts: Sequence[Host]) -> Iterator[None]:
    """Start the processes, in the background; end them if what is done meanwhile fails."""
    servers = _servers(task, hosts)
    for server in servers:
        threading.Thread(target=server.start, daemon=True).start()
    try:
        yield
    except BaseException:
        for server in servers:
            server.end()
        raise


def _servers(task: Task, hosts: Sequence[Host]) -> list[Server]:
    """One for each host that its inventory allows it on and that trains without GPUs; one for all workers of this machine."""
    servers: dict[tuple[str, str], Server] = {}
    code = TRAINER.sha256()
    for host in hosts:
        variables = task.task_vars["hostvars"][host.name]
        # What a process has of CUDA does not survive a fork.
        if host.gpus or not boolean("worker_preload", variables.get("worker_preload", True)):
            continue
        python = variables.get("worker_python", f"{variables['worker_root']}/venv/bin/python")
        caches = variables.get("worker_caches", f"{variables['worker_root']}/caches")
        name = key({"python": python, "caches": caches, "sha256": code})
        if (host.address, name) not in servers:
            environment = {**worker_environment.of_worker(host.environment, caches), "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"}
            servers[host.address, name] = Server(task.on(host.name), _session(name, python, environment))
    return list(servers.values())


def _packed(program: str) -> str:
    """A program in fewer bytes: all words of a command for tmux must fit into 16 KB."""
    packed = base64.b64encode(zlib.compress(program.encode(), 9)).decode()
    return f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"


def _session(name: str, python: str, environment: Mapping[str, str]) -> dict[str, Any]:
    settings = [f"{variable}={value}" for variable, value in environment.items()]
    argv = ["env", *settings, python, "-c", _packed(PROGRAM.read_text(encoding="utf-8")), name, "0", *LIBRARIES]
    return {"name": name, "argv": argv, "chdir": "/"}
