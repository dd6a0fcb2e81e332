"""Real runs through the playbooks, in a scratch project: nothing here touches the person's own runs."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from plugins.filter.cluster import session_name

ROOT = Path(__file__).resolve().parents[2]
PARTS = ["ansible.cfg", "plugins", "roles", "playbooks", "templates", "trainer", "inventory"]
CLASSES = ("cat", "dog and friends", "Käse")


@dataclass
class Project:
    """A scratch copy of the project with ports of its own."""

    root: Path
    ports: list[int]

    def play(self, command: str, *arguments: str, check: bool = True, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """Run a root playbook to its end."""
        settings = {"cwd": self.root, "env": self.environment(), "capture_output": True, "text": True, "timeout": timeout}
        done = subprocess.run(self.argv(command, *arguments), check=False, **settings)
        if check:
            assert done.returncode == 0, f"{command} {arguments}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        return done

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a root playbook and return at once."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        settings = {"cwd": self.root, "env": self.environment(), "text": True, "start_new_session": True}
        return subprocess.Popen(self.argv(command, *arguments), **settings, **pipes)

    def argv(self, command: str, *arguments: str) -> list[str]:
        """The command line; `a=b` arguments become `-e a=b`, as JSON where Ansible would split at a space."""
        words = [str(Path(sys.executable).parent / "ansible-playbook"), f"{command}.yml"]
        for argument in arguments:
            name, _, value = argument.partition("=")
            spaced = " " in value and not argument.startswith(("-", "{"))
            words += [argument] if argument.startswith("-") else ["-e", json.dumps({name: value}) if spaced else argument]
        return words

    def environment(self) -> dict[str, str]:
        """The environment of a person's shell, with this copy of the project in front."""
        return {**os.environ, "PYTHONPATH": str(self.root), "ANSIBLE_NOCOLOR": "1", "TERM": "dumb"}

    def run(self, name: str) -> Path:
        """A run directory on the control node."""
        return self.root / "runs" / name

    def node(self, worker: int, name: str) -> Path:
        """A run directory on a worker, counted from 1."""
        return self.root / ".lockstep" / f"worker{worker}" / "runs" / name

    def summary(self, name: str) -> dict[str, Any]:
        """summary.json of a run."""
        return json.loads((self.run(name) / "summary.json").read_text())

    def trainer_pid(self, worker: int, name: str) -> int:
        """Process id of a worker's trainer."""
        marker = f"--run\0{self.node(worker, name)}\0"
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and marker in _command_line(entry):
                return int(entry.name)
        raise AssertionError(f"no trainer process for worker{worker} of {name}")

    def steps(self, worker: int, name: str) -> int:
        """Steps that a worker has recorded so far."""
        path = self.node(worker, name) / "workers" / f"worker{worker}" / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        return max((json.loads(line)["step"] for line in lines if '"kind": "steps"' in line), default=0)


def _command_line(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def await_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll a condition; fail the test when it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


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
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A copy of the project for this session; its tmux sessions are ended afterwards."""
    root = tmp_path_factory.mktemp("lockstep project")
    for part in PARTS:
        source = ROOT / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, root / part)
    for playbook in ROOT.glob("*.yml"):
        shutil.copy(playbook, root)
    ports = free_ports(5)
    lines = [f"    worker{number}:\n      worker_port: {port}" for number, port in enumerate(ports, 1)]
    (root / "inventory/local/hosts.yml").write_text("workers:\n  hosts:\n" + "\n".join(lines) + "\n")
    made = Project(root, ports)
    yield made
    for run in (root / "runs").glob("*/config.yml"):
        for rank in range(5):
            session = session_name(run.parent.name, rank, str(root / ".lockstep" / f"worker{rank + 1}"))
            subprocess.run(["tmux", "-L", "lockstep", "kill-session", "-t", f"={session}"], capture_output=True, check=False)


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
