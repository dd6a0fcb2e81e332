"""A worker that Slurm started: its place in the cluster follows from the allocation, its files from a folder that all nodes read.

Slurm may give a run other nodes each time. So what a run needs to go on, and what a person wants of it, is given back to that folder
at the end, whatever the end is.
"""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainer import config as configs
from trainer.errors import DONE, FAILED, PREEMPTED, RESTART, ClusterError
from trainer.files import read_json, write_json

GIVEN_BACK = ("state", "config.yml", "history.csv", "summary.json", "logs", "checkpoints")
"""What the chief gives back beside its own `workers/<node>`; what a run needs to go on comes first."""
EVERY_S = 5.0
RUN = "run.json"
"""In a run's folder: its `id`, which a later run of the same name does not have, and the number of `workers` it was planned for."""


@dataclass(frozen=True)
class Allocation:
    """This task's place among those of a job."""

    rank: int
    nodes: list[str]
    """Names of all nodes, by rank."""
    job: str = ""
    """Slurm's number of the job."""
    step: str = ""
    """Slurm's number of this start of the job's workers."""

    @property
    def node(self) -> str:
        """Name of this one."""
        return self.nodes[self.rank]


@dataclass(frozen=True)
class Place:
    """Where things are on this node."""

    job: Path
    """The run's folder that all nodes read and write."""
    root: Path
    packs: Path
    caches: Path
    port: int
    threads: int
    gpus: int
    start_deadline: float

    @property
    def run(self) -> Path:
        """The run directory, on this node's own disk."""
        return self.root / "runs" / self.job.name


def allocation(environment: Mapping[str, str] = os.environ, expand: Callable[[str], Sequence[str]] | None = None) -> Allocation:
    """Read what `srun` told this task.

    Raises:
        ClusterError: it was not started by `srun`, or there is more than one task a node.
    """
    try:
        rank, tasks, listed = int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"]), environment["SLURM_STEP_NODELIST"]
    except (KeyError, ValueError) as error:
        raise ClusterError(f"{error}: not set as srun sets it; this command is started by srun, one task a node (train.sbatch)") from None
    nodes = list((expand or hostnames)(listed))
    if tasks != len(nodes):
        raise ClusterError(f"SLURM_NTASKS={tasks} on {len(nodes)} nodes ({listed}): one worker a node; ask for --ntasks-per-node=1")
    return Allocation(rank, nodes, environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", ""))


def hostnames(listed: str) -> list[str]:
    """`node[1-3]` as three names, in Slurm's order of tasks."""
    done = subprocess.run(["scontrol", "show", "hostnames", listed], capture_output=True, text=True, check=True)
    return done.stdout.split()


def tf_config(found: Allocation, port: int, resolve: Callable[[str], str] = socket.gethostbyname) -> dict[str, Any]:
    """TF_CONFIG of this task.

    Raises:
        ClusterError: a node's name means no address, or this node's own loopback.
    """
    addresses = [_address(node, resolve) for node in found.nodes]
    return {"cluster": {"worker": [f"{address}:{port}" for address in addresses]}, "task": {"type": "worker", "index": found.rank}}


def _address(node: str, resolve: Callable[[str], str]) -> str:
    try:
        address = resolve(node)
    except OSError as error:
        raise ClusterError(f"{node}: its name means no address here ({error}); add it to /etc/hosts or DNS on every node") from None
    if address.startswith("127."):
        raise ClusterError(
            f"{node}: its name means {address}, which no other node reaches; in /etc/hosts give it the address of its network"
        )
    return address


def check_port(port: int) -> None:
    """Refuse a port that another program listens on.

    Raises:
        ClusterError: it is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ClusterError(f"port {port}: {error.strerror}; another run, or program, has it on this node: -e slurm_port=N") from None


def check_number(place: Place, nodes: int) -> None:
    """Refuse another number of nodes than was planned where the learning rate depends on it.

    Raises:
        ClusterError: it does.
    """
    planned = read_json(place.job / RUN)["workers"]
    scaling = configs.build(yaml.safe_load((place.job / "config.yml").read_text(encoding="utf-8"))).schedule.scaling
    if scaling != "none" and nodes != planned:
        raise ClusterError(
            f"{nodes} nodes: this run was planned for {planned}, and schedule.scaling={scaling} makes its learning rate depend on that; "
            f"submit it with --nodes={planned}, or plan a run with workers={nodes}"
        )


def main(place: Place) -> int:
    """Train as one task of a job; gives the exit code of `trainer.worker`, or 128 and the signal that ended it.

    The worker is a process of its own: whatever becomes of it, what it made is given back.
    """
    hold = Hold()
    found, started = allocation(), time.time()
    try:
        put_others_aside(place)
    except ClusterError as error:
        return _refuse(place, found, started, error)
    own = place.run / "workers" / found.node
    own.mkdir(parents=True, exist_ok=True)
    take(place, found, own)
    code = FAILED
    over = threading.Event()
    teller = threading.Thread(target=_tell, args=(place, found, own, hold, over), daemon=True)
    teller.start()
    try:
        code = _train(place, found, own, hold)
    finally:
        over.set()
        teller.join()
        _write_end(own, found, started, code)
        give_back(place, found, own)
    return code


def _write_end(own: Path, found: Allocation, started: float, code: int) -> None:
    who = {"host": found.node, "rank": found.rank, "nodes": len(found.nodes), "job": found.job, "step": found.step}
    write_json(own / "exit.json", {**who, "exit_code": code, "started_at": started, "ended_at": time.time()})


def _refuse(place: Place, found: Allocation, started: float, error: ClusterError) -> int:
    """End before there is a run directory on this node: what is said goes to the shared folder at once."""
    own = place.job / "workers" / found.node
    own.mkdir(parents=True, exist_ok=True)
    (own / "worker.log").write_text(f"error: {error}\n", encoding="utf-8")
    _write_end(own, found, started, FAILED)
    return FAILED


class Hold:
    """A task's hold of its worker, from the task's first moment on.

    Slurm's wish that all end reaches every process of a step: this one passes it on, and stays until the worker has ended.
    """

    def __init__(self) -> None:
        self._worker: subprocess.Popen[bytes] | None = None
        self.told = False
        """Whether Slurm wishes that this task end."""
        self.gave_up: int | None = None
        """The exit code of a task whose worker was ended because it waits for another that is gone."""
        signal.signal(signal.SIGTERM, self._pass_on)

    def _pass_on(self, number: int, _: Any) -> None:
        self.told = True
        if self._worker is not None:
            self._worker.send_signal(number)

    def to(self, worker: "subprocess.Popen[bytes]") -> None:
        """Pass it on to a worker, also if it came before."""
        self._worker = worker
        if self.told:
            worker.send_signal(signal.SIGTERM)

    def give_up(self, code: int) -> None:
        """End the worker at once, with this exit code of the task."""
        if self._worker is not None:
            self.gave_up = code
            self._worker.kill()


def _train(place: Place, found: Allocation, own: Path, hold: Hold) -> int:
    with (own / "worker.log").open("a", encoding="utf-8") as log:
        try:
            check_port(place.port)
            check_number(place, len(found.nodes))
            config = json.dumps(tf_config(found, place.port))
        except ClusterError as error:
            print(f"error: {error}", file=log)
            return FAILED
        (own / "tf_config.json").write_text(config, encoding="utf-8")
        if hold.told:
            return PREEMPTED
        process = subprocess.Popen(worker(place, found), stdout=log, stderr=log, env={**os.environ, "TF_CONFIG": config})
        hold.to(process)
        code = process.wait()
    if hold.gave_up is not None:
        return hold.gave_up
    return code if code >= 0 else 128 - code


def worker(place: Place, found: Allocation) -> list[str]:
    """The command that trains."""
    paths = {"run": place.run, "host": found.node, "packs": place.packs, "caches": place.caches}
    numbers = {"threads": place.threads, "gpus": place.gpus, "start-deadline": place.start_deadline}
    words = [word for name, value in (paths | numbers).items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "trainer", "train", *words]


def _tell(place: Place, found: Allocation, own: Path, hold: Hold, over: threading.Event) -> None:
    """Let whoever watches the run's folder see how far this task is; the chief gives snapshots back as they come."""
    records = own / "metrics.jsonl"
    earlier = records.stat().st_size if records.is_file() else 0
    joining = True
    while not over.wait(EVERY_S):
        if records.is_file():
            copy(records, place.job / "workers" / found.node / "metrics.jsonl")
        joining = joining and hold.gave_up is None and not _trains(records, earlier)
        if joining and (ended := _ended_badly(place, found)):
            code = RESTART if ended["exit_code"] == RESTART or ended["exit_code"] > 128 else FAILED
            with (own / "worker.log").open("a", encoding="utf-8") as log:
                print(f"{ended['host']} ended with exit code {ended['exit_code']} while all were to join; see its log", file=log)
            hold.give_up(code)
        if found.rank == 0 and (place.run / "checkpoints").is_dir():
            copy(place.run / "checkpoints", place.job / "checkpoints")


def _ended_badly(place: Place, found: Allocation) -> dict[str, Any] | None:
    """The end of another task that was started with this one, when it was no good one."""
    for path in sorted((place.job / "workers").glob("*/exit.json")):
        ended: dict[str, Any] = read_json(path)
        same = (ended.get("job"), ended.get("step")) == (found.job, found.step)
        if same and ended["host"] != found.node and ended["exit_code"] not in (DONE, PREEMPTED):
            return ended
    return None


def _trains(records: Path, earlier: int) -> bool:
    """Whether a worker is past joining: from then on it notices by itself that another is gone."""
    if not records.is_file():
        return False
    with records.open("rb") as file:
        file.seek(earlier)
        return b'"kind": "steps"' in file.read()


def put_others_aside(place: Place) -> None:
    """Rename what an older run of the same name left on this node, as one that was deleted where this node was not looked at.

    Raises:
        ClusterError: something listens on the port of this task: it may be that run.
    """
    if place.run.is_dir() and _identity(place.run) not in (None, read_json(place.job / RUN)["id"]):
        check_port(place.port)
        free = (place.run.with_name(f"{place.run.name}.before-{number}") for number in itertools.count(1))
        place.run.rename(next(path for path in free if not path.exists()))


def _identity(run: Path) -> str | None:
    """Of the run whose directory that is (`train.yml` writes it to another file than this); None where the file can't be read."""
    found = [path for path in (run / RUN, run / "cluster.json") if path.is_file()]
    try:
        return str(read_json(found[0]).get("id", "")) if found else ""
    except ValueError:
        return None


def take(place: Place, found: Allocation, own: Path) -> None:
    """Get what this task needs and lacks: the configuration; for the chief the newest state; what its reduction had not sent."""
    for name in (RUN, "config.yml"):
        copy(place.job / name, place.run / name)
    if found.rank == 0 and _newest(place.job / "state") > _newest(place.run / "state"):
        for name in ("state", "history.csv"):
            copy(place.job / name, place.run / name)
    memory = place.job / "workers" / found.node / "memory"
    if _newest(memory) > _newest(own / "memory"):
        copy(memory, own / "memory")
    (own / "exit.json").unlink(missing_ok=True)
    _put_aside(own, found.job)


def _put_aside(own: Path, job: str) -> None:
    """Keep what an earlier job recorded under another name; a job that starts its workers again goes on with its records."""
    marker, records = own / "job", own / "metrics.jsonl"
    before = marker.read_text(encoding="utf-8") if marker.is_file() else ""
    if before != job:
        if records.is_file():
            records.rename(own / f"metrics-{before or 'before'}.jsonl")
        marker.write_text(job, encoding="utf-8")


def _newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("step-*.npz")), default="")


def give_back(place: Place, found: Allocation, own: Path) -> None:
    """Put into the run's folder what this task made; files that are there already are not copied again."""
    copy(own, place.job / "workers" / found.node)
    if found.rank == 0:
        for name in GIVEN_BACK:
            if (place.run / name).exists():
                copy(place.run / name, place.job / name)


def copy(source: Path, target: Path) -> None:
    """Make a file or folder like another: what is new or changed is copied, states that are no longer there go."""
    files = [source] if source.is_file() else [path for path in sorted(source.rglob("*")) if path.is_file()]
    wanted = {
        target if source.is_file() else target / path.relative_to(source): path for path in files if not path.name.startswith(".part-")
    }
    for there, file in wanted.items():
        if not _same(there, file):
            there.parent.mkdir(parents=True, exist_ok=True)
            part = there.with_name(f".part-{there.name}")
            shutil.copy2(file, part)
            part.replace(there)
    for old in target.rglob("step-*.npz") if target.is_dir() else []:
        if old not in wanted:
            old.unlink()


def _same(there: Path, file: Path) -> bool:
    if not there.is_file():
        return False
    one, other = there.stat(), file.stat()
    return one.st_size == other.st_size and abs(one.st_mtime - other.st_mtime) < 0.01
