"""Real runs through the playbooks, in a scratch project: nothing here touches the person's own runs."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control.remote.tmux import by_hand
from control.runs.cluster import session_name
from tests.pictures import make_pictures
from tests.ports import worker_ports
from tests.project import Project, await_until, copy_project, ending_after_a_failure
from trainer.supervision.supervisor import FILE
from trainer.telemetry import read_records


@dataclass
class LocalProject(Project):
    """Its workers are processes of this machine, on ports of their own."""

    ports: list[int] = field(default_factory=list)

    def node(self, worker: int, name: str) -> Path:
        """A run directory on a worker, counted from 1."""
        return self.root / ".lockstep" / f"worker{worker}" / "runs" / name

    def trainer_pid(self, worker: int, name: str) -> int:
        """Process id of a worker's trainer."""
        marker = f"--run\0{self.node(worker, name)}\0"
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and marker in (line := _command_line(entry)) and "trainer.supervision" not in line:
                return int(entry.name)
        raise AssertionError(f"no trainer process for worker{worker} of {name}")

    def pids(self, worker: int, name: str) -> dict[str, int]:
        """Process ids of a worker's `supervisor` and `worker`; without the latter while the supervisor is about to start one."""
        return json.loads((self.node(worker, name) / "workers" / f"worker{worker}" / FILE).read_text())["pids"]

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
                subprocess.run(["sh", "-c", by_hand(session)], capture_output=True, check=False)
        await_until(lambda: not self.workers(), 60, "the end of all workers")

    def workers(self) -> list[str]:
        """Command lines of all workers and supervisors of this copy's runs."""
        marks = (f"--run\0{self.root}/", f"--folder={self.root}/")
        lines = [_command_line(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [line for line in lines if any(mark in line for mark in marks)]

    def sessions(self, name: str) -> list[str]:
        """The tmux sessions of a run of this copy."""
        own = {session_name(name, rank, str(self.root / ".lockstep" / f"worker{rank + 1}")) for rank in range(len(self.ports))}
        return sorted(own & set(all_sessions()))

    def steps(self, worker: int, name: str) -> int:
        """Steps that a worker has recorded so far."""
        path = self.node(worker, name) / "workers" / f"worker{worker}" / "metrics.jsonl"
        return max((record["step"] for record in read_records(path) if record["kind"] == "steps"), default=0)


def all_sessions() -> list[str]:
    """The names of the sessions of all projects on this machine."""
    listing = ["tmux", "-L", "lockstep", "ls", "-F", "#{session_name}"]
    return subprocess.run(listing, capture_output=True, text=True, check=False).stdout.splitlines()


def _command_line(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> LocalProject:
    """A copy of the project for this session, with what it prepares once."""
    root = tmp_path_factory.mktemp("lockstep project")
    copy_project(root)
    ports = worker_ports(5)
    lines = [f"    worker{number}:\n      worker_port: {port}" for number, port in enumerate(ports, 1)]
    (root / "inventory/local/hosts.yml").write_text("workers:\n  hosts:\n" + "\n".join(lines) + "\n")
    return LocalProject(root, ports=ports)


@pytest.fixture(scope="module")
def project(scratch: LocalProject) -> Iterator[LocalProject]:
    """The scratch copy without a run of another file's tests; its tmux sessions are ended afterwards."""
    yield scratch
    scratch.end_all()
    for runs in (scratch.root / "runs", *scratch.root.glob(".lockstep/*/runs")):
        shutil.rmtree(runs, ignore_errors=True)


nothing_left_of_a_failure = ending_after_a_failure("project")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images that a small network can learn: three classes, names with spaces and Unicode."""
    return make_pictures(tmp_path_factory.mktemp("bilder mit ü"))
