"""Runs through the playbooks in a scratch project on this machine: nothing here touches the person's own runs."""

import contextlib
import dataclasses
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from control.remote.worker_files import read_records
from tests.ports import worker_ports
from tests.project import ROOT, Project, await_during, await_until, copy_project, without_preloading
from trainer.common.files import write_json
from trainer.host.claims import MARK, SOCKET, SUPERVISED, session_name


@dataclass
class LocalProject(Project):
    """Its workers are processes of this machine, on ports of their own."""

    ports: list[int] = field(default_factory=list)

    def node(self, worker: int, name: str) -> Path:
        """A run directory on a worker, counted from 1."""
        return self.root / ".lockstep" / f"worker{worker}" / "runs" / name

    def as_cloned(self) -> "LocalProject":
        """This project with the inventory that a clone has, whose ports are chosen at each launch."""
        shutil.copytree(ROOT / "inventory/local", self.root / "inventory/default", dirs_exist_ok=True)
        without_preloading(self.root / "inventory/default")
        return dataclasses.replace(self, inventory="inventory/default")

    def ports_of(self, name: str) -> set[int]:
        """The ports of a run's workers."""
        return {host["port"] for host in json.loads((self.run(name) / "cluster.json").read_text())["hosts"]}

    def hold(self, name: str, step: int) -> None:
        """Let the stub workers of a run wait before a step, counted from 0, until `release`."""
        self.order(name, {"hold": step})

    def order(self, name: str, orders: dict[str, object]) -> None:
        """Give the stub workers of a run orders: see `tests.stub_worker`."""
        write_json(self.root / ".lockstep" / "stub" / f"{name}.json", orders)

    def release(self, name: str) -> None:
        """Let the stub workers of a run go on."""
        (self.root / ".lockstep" / "stub" / f"{name}.json").unlink(missing_ok=True)

    def trainer_pid(self, worker: int, name: str) -> int:
        """Process id of a worker's trainer."""
        marker = f"--run\0{self.node(worker, name)}\0"
        for pid, line in command_lines().items():
            if marker in line and "trainer.supervision" not in line:
                return pid
        raise AssertionError(f"no trainer process for worker{worker} of {name}")

    def pids(self, worker: int, name: str) -> dict[str, int]:
        """Process ids of a worker's `supervisor` and `worker`; without the latter while the supervisor is about to start one."""
        return json.loads((self.node(worker, name) / "workers" / f"worker{worker}" / SUPERVISED).read_text())["pids"]

    def has_another(self, worker: int, name: str, before: int) -> bool:
        """Whether a supervisor has started a worker with another process id."""
        with contextlib.suppress(FileNotFoundError):
            return self.pids(worker, name).get("worker", before) != before
        return False

    def end_all(self) -> None:
        """End what this copy has started and not ended: commands, sessions and workers."""
        self.end_started()
        for run in (self.root / "runs").glob("*/config.yml"):
            for session in self.sessions(run.parent.name):
                # Unmarked, a supervisor returns in a new session.
                folder = f"folder=$(tmux -L {SOCKET} list-panes -s -t ={session}: -F '#{{session_path}}')"
                end = f'{folder} && touch "$folder/{MARK}"; tmux -L {SOCKET} kill-session -t ={session}'
                subprocess.run(["sh", "-c", end], capture_output=True, check=False)
        await_until(lambda: not self.workers(), 60, "the end of all workers")

    def workers(self) -> list[str]:
        """Command lines of all workers and supervisors of this copy's runs."""
        marks = (f"--run\0{self.root}/", f'"folder": "{self.root}/')
        return [line for line in command_lines().values() if any(mark in line for mark in marks)]

    def sessions(self, name: str) -> list[str]:
        """The tmux sessions of a run of this copy."""
        own = {session_name(name, rank, str(self.root / ".lockstep" / f"worker{rank + 1}")) for rank in range(len(self.ports))}
        return sorted(own & set(all_sessions()))

    def steps(self, worker: int, name: str) -> int:
        """Steps that a worker has recorded so far."""
        path = self.node(worker, name) / "workers" / f"worker{worker}" / "metrics.jsonl"
        return max((record["step"] for record in read_records(path) if record["kind"] == "steps"), default=0)

    def await_steps(self, playbook: subprocess.Popen[str] | None, name: str, steps: int) -> None:
        """Wait until the first worker of a run has recorded more steps; fail if the command that watches it ends first."""
        await_during(playbook, lambda: self.steps(1, name) > steps, 120, f"{steps} steps")

    def log(self, worker: int, name: str, file: str = "worker.log") -> str:
        """The text of a worker's log of a run."""
        return (self.node(worker, name) / "workers" / f"worker{worker}" / file).read_text()


def children(pid: int) -> list[int]:
    """Processes that a process has started and that have not ended."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def all_sessions() -> list[str]:
    """The names of the sessions of all projects on this machine."""
    listing = ["tmux", "-L", "lockstep", "ls", "-F", "#{session_name}"]
    return subprocess.run(listing, capture_output=True, text=True, check=False).stdout.splitlines()


def command_lines() -> dict[int, str]:
    """Of all processes of this machine, by process id; a zero byte ends each word."""
    lines = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines[int(path.parent.name)] = path.read_text(errors="replace")
    return lines


def make_project(root: Path, stub: bool) -> LocalProject:
    """A copy of the project with five workers on this machine; `stub` as in `copy_project`."""
    copy_project(root, stub)
    (root / ".lockstep" / "stub").mkdir(parents=True)
    ports = worker_ports(5)
    lines = [f"    worker{number}:\n      worker_port: {port}" for number, port in enumerate(ports, 1)]
    (root / "inventory/local/hosts.yml").write_text("workers:\n  hosts:\n" + "\n".join(lines) + "\n")
    return LocalProject(root, ports=ports)


def without_runs(scratch: LocalProject) -> Iterator[LocalProject]:
    """A scratch copy for one file of tests: afterwards its sessions are ended, and its runs deleted."""
    yield scratch
    scratch.end_all()
    for runs in (scratch.root / "runs", *scratch.root.glob(".lockstep/*/runs")):
        shutil.rmtree(runs, ignore_errors=True)
