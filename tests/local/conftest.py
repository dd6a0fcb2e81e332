"""Real runs through the playbooks, in a scratch project: nothing here touches the person's own runs."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from control.remote.tmux import by_hand
from control.runs.cluster import session_name
from tests.project import Project, copy_project

CLASSES = ("cat", "dog and friends", "Käse")


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
            if entry.name.isdigit() and marker in (line := _command_line(entry)) and SUPERVISOR not in line:
                return int(entry.name)
        raise AssertionError(f"no trainer process for worker{worker} of {name}")

    def steps(self, worker: int, name: str) -> int:
        """Steps that a worker has recorded so far."""
        path = self.node(worker, name) / "workers" / f"worker{worker}" / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        return max((json.loads(line)["step"] for line in lines if '"kind": "steps"' in line), default=0)


SUPERVISOR = "trainer.supervision"


def _command_line(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> LocalProject:
    """A copy of the project for this session, with what it prepares once."""
    root = tmp_path_factory.mktemp("lockstep project")
    copy_project(root)
    ports = free_ports(5)
    lines = [f"    worker{number}:\n      worker_port: {port}" for number, port in enumerate(ports, 1)]
    (root / "inventory/local/hosts.yml").write_text("workers:\n  hosts:\n" + "\n".join(lines) + "\n")
    return LocalProject(root, ports=ports)


@pytest.fixture(scope="module")
def project(scratch: LocalProject) -> Iterator[LocalProject]:
    """The scratch copy without a run of another file's tests; its tmux sessions are ended afterwards."""
    yield scratch
    for run in (scratch.root / "runs").glob("*/config.yml"):
        for rank in range(5):
            session = session_name(run.parent.name, rank, str(scratch.root / ".lockstep" / f"worker{rank + 1}"))
            subprocess.run(["sh", "-c", by_hand(session)], capture_output=True, check=False)
    for runs in (scratch.root / "runs", *scratch.root.glob(".lockstep/*/runs")):
        shutil.rmtree(runs, ignore_errors=True)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images that a small network can learn: three classes, names with spaces and Unicode."""
    root = tmp_path_factory.mktemp("bilder mit ü")
    rng = np.random.default_rng(0)
    for split, count in (("train", 60), ("test", 20)):
        for label, name in enumerate(CLASSES):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 90, (20 + number % 3 * 8, 24, 3), dtype=np.uint8)
                pixels[..., label] += 120
                ending = ("jpg", "png", "bmp", "gif")[number % 4]
                Image.fromarray(pixels).save(folder / f"bild {number}.{ending}")
    return root
