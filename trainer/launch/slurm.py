"""A worker that Slurm started: its rank comes from the allocation, its files from a folder that all nodes share.

Slurm may give a run different nodes each time. So whatever a run needs to continue, and its results, are copied back to that folder
at the end, however the task ends.
"""

import contextlib
import datetime
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.common.errors import DONE, FAILED, PREEMPTED, RESTART, ClusterError, code_of
from trainer.common.files import read_json, sha256_file, write_json
from trainer.config import loading
from trainer.host import ports, sealed_files
from trainer.network import member
from trainer.rundir.layout import part_of, prune, snapshots_policy
from trainer.rundir.metrics_log import METRICS, WORKER_LOG
from trainer.rundir.schemas import HEADER, read_history

if TYPE_CHECKING:
    from trainer.data.manifest import Published

GIVEN_BACK = ("state", "config.yml", "history.csv", "summary.json", "logs", "checkpoints", "output")
"""Files that the chief copies back besides its own `workers/<node>`; the ones that a run needs to continue come first."""
EVERY_S = 5.0
RUN = "run.json"
"""In a run's folder: its `id`, unique even among runs of the same name, and the number of `workers` it was planned for."""


@dataclass(frozen=True)
class Allocation:
    """One task among those of a job."""

    rank: int
    nodes: list[str]
    """Names of all nodes, by rank."""
    job: str = ""
    """Slurm's job number."""
    step: str = ""
    """Slurm's number for this start of the job's workers."""

    @property
    def node(self) -> str:
        """Name of this node."""
        return self.nodes[self.rank]


@dataclass(frozen=True)
class NodePaths:
    """Where things are on this node."""

    job: Path
    """The run's shared folder, which all nodes read and write."""
    root: Path
    published: "Published"
    config_sha256: str
    """Digest of the submitted configuration: it may contain the user's own model, and all nodes can write to its folder."""
    caches: Path
    port: int
    threads: int
    gpus: int
    start_deadline: float

    @property
    def run(self) -> Path:
        """The run directory, on this node's own disk."""
        return self.root / "runs" / self.job.name


def _hostnames(listed: str) -> list[str]:
    """Expand `node[1-3]` to three names, in Slurm's order of tasks."""
    completed = subprocess.run(["scontrol", "show", "hostnames", listed], capture_output=True, text=True, check=True)
    return completed.stdout.split()


def _allocation(environment: Mapping[str, str] = os.environ, expand: Callable[[str], list[str]] = _hostnames) -> Allocation:
    """This task's allocation, as `srun` set it; ClusterError if it was not started so, or there is more than one task per node."""
    try:
        rank, tasks, listed = int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"]), environment["SLURM_STEP_NODELIST"]
    except (KeyError, ValueError) as error:
        raise ClusterError(f"{error}: not set as srun sets it; this command is started by srun, one task per node (train.sbatch)") from None
    nodes = expand(listed)
    if tasks != len(nodes):
        raise ClusterError(f"SLURM_NTASKS={tasks} on {len(nodes)} nodes ({listed}): one worker per node; ask for --ntasks-per-node=1")
    return Allocation(rank, nodes, environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", ""))


def tf_config(task: Allocation, port: int, resolve: Callable[[str], str] = socket.gethostbyname) -> dict[str, Any]:
    """TF_CONFIG of this task; ClusterError if a node's name does not resolve, or resolves to the loopback."""
    return member.tf_config([member.endpoint(_address(node, resolve), port) for node in task.nodes], task.rank)


def _address(node: str, resolve: Callable[[str], str]) -> str:
    try:
        address = resolve(node)
    except OSError as error:
        raise ClusterError(f"{node} does not resolve ({error}); add it to /etc/hosts or DNS on every node") from None
    if address.startswith("127."):
        raise ClusterError(f"{node} resolves to {address}, which no other node reaches; in /etc/hosts give it the address of its network")
    return address


def _check_port(port: int) -> None:
    """Refuse a port that another program listens on (ClusterError)."""
    if error := ports.taken(port):
        who = ports.holder(port) or "another run, or program,"
        raise ClusterError(f"port {port}: {error.strerror}; {who} has it on this node. Fix: end that, or -e slurm_port=N")


def _check_config(paths: NodePaths) -> None:
    """Refuse a configuration other than the submitted one (ClusterError)."""
    digest = sha256_file(paths.run / "config.yml")
    if digest != paths.config_sha256:
        raise ClusterError(
            f"{paths.job / 'config.yml'} has SHA-256 {digest[:16]}..., and {paths.config_sha256[:16]}... was submitted; another user "
            f"wrote it. Fix: ansible-playbook playbooks/slurm.yml -e run={paths.job.name} writes it anew"
        )


def _check_number(paths: NodePaths, nodes: int) -> None:
    """Refuse a number of nodes other than planned if the learning rate depends on it (ClusterError)."""
    planned = read_json(paths.job / RUN)["workers"]
    scaling = loading.build(loading.load(paths.run / "config.yml")).schedule.scaling
    if scaling != "none" and nodes != planned:
        raise ClusterError(
            f"{nodes} nodes: this run was planned for {planned}, and schedule.scaling={scaling} makes its learning rate depend on that; "
            f"submit it with --nodes={planned}, or plan a run with workers={nodes}"
        )


def main(paths: NodePaths) -> int:
    """Train as one task of a job; return the exit code of `trainer.worker.process`, or 128 plus the signal that ended it."""
    hold = WorkerProcess()
    task, started = _allocation(), time.time()
    try:
        _put_others_aside(paths)
    except ClusterError as error:
        return _refuse(paths, task, started, error)
    own = part_of(paths.run, task.node)
    own.mkdir(parents=True, exist_ok=True)
    _take(paths, task, own)
    code = FAILED
    over = threading.Event()
    reporter = threading.Thread(target=_report, args=(paths, task, own, hold, over), daemon=True)
    reporter.start()
    try:
        code = _train(paths, task, own, hold)
    finally:
        over.set()
        reporter.join()
        _write_end(own, task, started, code)
        _give_back(paths, task, own)
    return code


def _write_end(own: Path, task: Allocation, started: float, code: int) -> None:
    who = {"host": task.node, "rank": task.rank, "nodes": len(task.nodes), "job": task.job, "step": task.step}
    write_json(own / "exit.json", {**who, "exit_code": code, "started_at": started, "ended_at": time.time()})


def _refuse(paths: NodePaths, task: Allocation, started: float, error: ClusterError) -> int:
    """End before there is a run directory on this node: the message goes directly to the shared folder."""
    own = part_of(paths.job, task.node)
    own.mkdir(parents=True, exist_ok=True)
    (own / WORKER_LOG).write_text(f"error: {error}\n", encoding="utf-8")
    _write_end(own, task, started, FAILED)
    return FAILED


class WorkerProcess:
    """A task's control of its worker: passes Slurm's stop signal on, even one from before its start, and outlives it."""

    def __init__(self) -> None:
        self._worker: subprocess.Popen[bytes] | None = None
        self.stop_asked = False
        """True once Slurm has requested the end of this task."""
        self.gave_up: int | None = None
        """The task's exit code if its worker was killed because it waits for another that is gone."""
        signal.signal(signal.SIGTERM, self._pass_on)

    def _pass_on(self, number: int, _: Any) -> None:
        self.stop_asked = True
        if self._worker is not None:
            self._worker.send_signal(number)

    def to(self, worker: "subprocess.Popen[bytes]") -> None:
        """Pass the signal on to a worker, even if it came earlier."""
        self._worker = worker
        if self.stop_asked:
            worker.send_signal(signal.SIGTERM)

    def give_up(self, code: int) -> None:
        """Kill the worker; the task then ends with this exit code."""
        if self._worker is not None:
            self.gave_up = code
            self._worker.kill()


def _train(paths: NodePaths, task: Allocation, own: Path, hold: WorkerProcess) -> int:
    with (own / WORKER_LOG).open("a", encoding="utf-8") as log, _temporary(own) as temporary:
        when = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        print(f"{HEADER}{task.job}.{task.step}, {when}, rank {task.rank}", file=log, flush=True)
        try:
            _check_config(paths)
            _check_port(paths.port)
            _check_number(paths, len(task.nodes))
            config = json.dumps(tf_config(task, paths.port))
        except ClusterError as error:
            print(f"error: {error}", file=log)
            return FAILED
        (own / "tf_config.json").write_text(config, encoding="utf-8")
        if hold.stop_asked:
            return PREEMPTED
        environment = {**os.environ, "TF_CONFIG": config, "TMPDIR": str(temporary)}
        process = subprocess.Popen(worker(paths, task), stdout=log, stderr=log, env=environment)
        hold.to(process)
        code = process.wait()
    if hold.gave_up is not None:
        return hold.gave_up
    return code_of(code)


@contextlib.contextmanager
def _temporary(own: Path) -> Iterator[Path]:
    """A temporary folder, deleted afterwards, for files that killed libraries leave behind."""
    folder = own / "tmp"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def worker(paths: NodePaths, task: Allocation) -> list[str]:
    """The worker's command line."""
    data = {"manifest": paths.published.sha256, "run": paths.run, "host": task.node, "packs": paths.published.folder}
    options = data | {"caches": paths.caches, "threads": paths.threads, "gpus": paths.gpus, "start-deadline": paths.start_deadline}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "trainer", "train", *words]


def _report(paths: NodePaths, task: Allocation, own: Path, hold: WorkerProcess, over: threading.Event) -> None:
    """Show this task's progress in the run's shared folder; the chief also copies snapshots there as they appear."""
    records = own / METRICS
    earlier = records.stat().st_size if records.is_file() else 0
    joining = True
    while not over.wait(EVERY_S):
        # A share that is full or away, and snapshots that are pruned meanwhile, are tried again.
        with contextlib.suppress(OSError):
            if records.is_file():
                _copy(records, part_of(paths.job, task.node) / METRICS)
        joining, ended = joining and hold.gave_up is None and not _trains(records, earlier), None
        with contextlib.suppress(OSError):
            ended = _ended_badly(paths, task) if joining else None
        if ended:
            code = RESTART if ended["exit_code"] == RESTART or ended["exit_code"] > 128 else FAILED
            with (own / WORKER_LOG).open("a", encoding="utf-8") as log:
                print(f"{ended['host']} ended with exit code {ended['exit_code']} while all were to join; see its log", file=log)
            hold.give_up(code)
        with contextlib.suppress(OSError):
            if task.rank == 0 and (paths.run / "checkpoints").is_dir():
                _copy(paths.run / "checkpoints", paths.job / "checkpoints")
                _prune(paths)


def _ended_badly(paths: NodePaths, task: Allocation) -> dict[str, Any] | None:
    """The exit record of another task started with this one, if it failed."""
    for path in sorted((paths.job / "workers").glob("*/exit.json")):
        ended: dict[str, Any] = read_json(path)
        same = (ended.get("job"), ended.get("step")) == (task.job, task.step)
        if same and ended["host"] != task.node and ended["exit_code"] not in (DONE, PREEMPTED):
            return ended
    return None


def _trains(records: Path, earlier: int) -> bool:
    """Return whether a worker is past joining; from then on the worker notices a lost peer by itself."""
    if not records.is_file():
        return False
    with records.open("rb") as file:
        file.seek(earlier)
        return b'"kind": "steps"' in file.read()


def _put_others_aside(paths: NodePaths) -> None:
    """Rename what an older run of the same name left on this node; ClusterError if something, perhaps that run, has this task's port."""
    if paths.run.is_dir() and _identity(paths.run) not in (None, read_json(paths.job / RUN)["id"]):
        _check_port(paths.port)
        free = (paths.run.with_name(f"{paths.run.name}.before-{number}") for number in itertools.count(1))
        paths.run.rename(next(path for path in free if not path.exists()))


def _identity(run: Path) -> str | None:
    """The id of a directory's run (`train.yml` writes it to a different file); None if the file can't be read."""
    records = [path for path in (run / RUN, run / "cluster.json") if path.is_file()]
    try:
        return str(read_json(records[0]).get("id", "")) if records else ""
    except ValueError:
        return None


def _take(paths: NodePaths, task: Allocation, own: Path) -> None:
    """Copy what this task lacks: the configuration; for the chief, the newest state; the memory of its reduction."""
    for name in (RUN, "config.yml"):
        _copy(paths.job / name, paths.run / name)
    if task.rank == 0 and _newest(paths.job / "state") > _newest(paths.run / "state", own=True):
        for name in ("state", "history.csv"):
            _copy(paths.job / name, paths.run / name)
    memory = part_of(paths.job, task.node) / "memory"
    if _newest(memory) > _newest(own / "memory", own=True):
        _copy(memory, own / "memory")
    (own / "exit.json").unlink(missing_ok=True)
    _put_aside(own, task.job)


def _put_aside(own: Path, job: str) -> None:
    """Rename an earlier job's records; a job that restarts its workers continues its own records."""
    marker, records = own / "job", own / METRICS
    before = marker.read_text(encoding="utf-8") if marker.is_file() else ""
    if before != job:
        if records.is_file():
            records.rename(own / f"metrics-{before or 'before'}.jsonl")
        marker.write_text(job, encoding="utf-8")


def _newest(folder: Path, own: bool = False) -> int:
    """The step of the newest intact state in a folder, -1 without any; on this node's own disk, damaged ones are put aside."""
    newest, damaged = sealed_files.newest_whole(folder)
    for name, reason in damaged.items() if own else ():
        print(f"{folder / name} is damaged ({reason}): kept as {sealed_files.put_aside(folder / name)}", flush=True)
    return sealed_files.step_of(newest)


def _prune(paths: NodePaths) -> None:
    policy, monitor = snapshots_policy(paths.run)
    prune(paths.job, policy, read_history(paths.run / "history.csv"), monitor)


def _give_back(paths: NodePaths, task: Allocation, own: Path) -> None:
    """Copy this task's files to the run's shared folder; unchanged files are not copied again."""
    _copy(own, part_of(paths.job, task.node))
    if task.rank == 0:
        for name in GIVEN_BACK:
            if (paths.run / name).exists():
                _copy(paths.run / name, paths.job / name)
        _prune(paths)


def _copy(source: Path, target: Path) -> None:
    """Copy new and changed files, of states only intact ones; delete states that are gone from the source, unless one is damaged."""
    files = [source] if source.is_file() else [path for path in sorted(source.rglob("*")) if path.is_file()]
    left = (path for path in files if not path.name.startswith(".part-") and sealed_files.ASIDE not in path.parts)
    wanted = {target if source.is_file() else target / path.relative_to(source): path for path in left}
    damaged = False
    for copied, file in wanted.items():
        if not _same(copied, file):
            if sealed_files.NAME.fullmatch(file.name) and sealed_files.damage(file):
                damaged = True
                continue
            copied.parent.mkdir(parents=True, exist_ok=True)
            part = copied.with_name(f".part-{copied.name}")
            shutil.copy2(file, part)
            part.replace(copied)
    for old in target.rglob("step-*.npz") if target.is_dir() and not damaged else []:
        if old not in wanted:
            old.unlink()


def _same(copied: Path, file: Path) -> bool:
    if not copied.is_file():
        return False
    one, other = copied.stat(), file.stat()
    return one.st_size == other.st_size and abs(one.st_mtime - other.st_mtime) < 0.01
