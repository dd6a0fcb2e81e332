"""Five real hosts: containers with SSH, systemd, GlusterFS and a firewall, driven through the playbooks."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.project import ROOT, Project, await_until, copy_project, ending_after_a_failure

PREFIX, SUBNET, NODES = "lockstep-test", "10.89.78.0/24", 5
SETTINGS = (f"lab_prefix={PREFIX}", f"lab_subnet={SUBNET}")
SHARED = ("wheels", "sources")
END = """cd /home/lockstep/lockstep && rm -f queue/* && for folder in runs/*/workers/*/; do touch "$folder/stop"; done
runuser -u lockstep -- tmux -L lockstep kill-server"""
TESTER = ".lockstep/tester"  # holds the id of the process that tests with this copy


@dataclass
class Lab(Project):
    """A project whose inventory is the lab's."""

    engine: str = "podman"

    def up(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`lab.yml` with settings of the tests' own, beside a person's lab."""
        return Project(self.root).play("lab", *SETTINGS, *arguments, check=check, timeout=600)

    def on(self, node: int, command: str, check: bool = True) -> str:
        """Standard output of a shell command, as root on a node (counted from 1), not over SSH."""
        argv = [self.engine, "exec", f"{PREFIX}-node{node}", "sh", "-c", command]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0 or not check, f"node{node}: {command}: {done.stderr}"
        return done.stdout

    def container(self, *arguments: str) -> str:
        """A command of the container engine."""
        return subprocess.run([self.engine, *arguments], capture_output=True, text=True, check=True, timeout=120).stdout

    @contextlib.contextmanager
    def stranger(self) -> Iterator[str]:
        """A container in the network of the lab, like the nodes, that no inventory names; its name."""
        name, address = f"{PREFIX}-stranger", f"{SUBNET.rpartition('.')[0]}.200"
        image = self.container("inspect", "-f", "{{.ImageName}}", f"{PREFIX}-node1").strip()
        settings = self.root / ".lockstep" / "lab" / "containers.conf"
        with pytest.MonkeyPatch.context() as patch:
            if settings.is_file():
                patch.setenv("CONTAINERS_CONF", str(settings))
            self.container("run", "-d", "--name", name, "--network", PREFIX, "--ip", address, image, "sleep", "3600")
        try:
            yield name
        finally:
            self.container("rm", "-f", "-t", "0", name)

    def address(self, node: int) -> str:
        """Address of a node, counted from 1."""
        return f"{SUBNET.rpartition('.')[0]}.{10 + node}"

    def sent(self) -> int:
        """Bytes that this machine has sent to the nodes: what goes from node to node does not leave through the bridge's own port."""
        gateway = f"{SUBNET.rpartition('.')[0]}.1"
        links = json.loads(subprocess.run(["ip", "-j", "addr"], capture_output=True, text=True, check=True).stdout)
        name = next(link["ifname"] for link in links if any(one.get("local") == gateway for one in link["addr_info"]))
        return int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text())

    def sessions(self, node: int) -> list[str]:
        """Names of the tmux sessions on a node; the user who trains has a server of his own."""
        return self.on(node, "runuser -u lockstep -- tmux -L lockstep ls -F '#{session_name}' 2>/dev/null", check=False).split()

    def end_all(self) -> None:
        """End what this project has started and not ended: commands, and everything that its user runs on the nodes."""
        self.end_started()
        for node in range(1, NODES + 1):
            self.on(node, END, check=False)
            await_until(
                lambda node=node: not self.on(node, "pgrep -u lockstep -f trainer", check=False), 60, f"the end of all on node{node}"
            )

    def steps(self, node: int, run: str) -> int:
        """Steps that a node has recorded of a run."""
        path = f"/home/lockstep/lockstep/runs/{run}/workers/node{node}/metrics.jsonl"
        lines = self.on(node, f"cat {path} 2>/dev/null", check=False).splitlines()
        return max((json.loads(line)["step"] for line in lines if '"kind": "steps"' in line and line.endswith("}")), default=0)


def missing() -> str | None:
    """Why no containers can run here, in a line; None when they can, or when the lab can install what they need."""
    if os.geteuid() != 0:
        return "the lab's tests need root (containers with their own network): run them as root"
    if not any(shutil.which(tool) for tool in ("podman", "docker", "apt-get")):
        return "the lab's tests need podman, docker, or apt-get to install podman with"
    return None


def refusal(output: str) -> str | None:
    """The line in which lab.yml says that no containers can run here; on CI that is a failure and no reason to skip."""
    lines = [line for line in output.splitlines() if "can't start" in line or "needs containers" in line]
    return lines[0] if lines else None


def remove_remains(engine: str = "podman") -> None:
    """Remove the lab of an earlier session of these tests that ended without its own cleanup, as when the machine went down."""
    if shutil.which(engine) is None:
        return
    network = subprocess.run([engine, "network", "inspect", PREFIX], capture_output=True, text=True, check=False)
    project = json.loads(network.stdout)[0].get("labels", {}).get("lockstep.project") if network.returncode == 0 else None
    if project is None or in_use(Path(project)):
        return
    listing = [engine, "ps", "-aq", "--filter", f"label=lockstep.project={project}"]
    nodes = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
    if nodes:
        subprocess.run([engine, "rm", "-f", "-t", "0", *nodes], check=True)
    subprocess.run([engine, "network", "rm", PREFIX], check=True)


def in_use(project: Path) -> bool:
    """Whether a lab's project may still be wanted: it is there, and is a person's or that of a session that still tests."""
    if not project.is_dir():
        return False
    tester = project / TESTER
    return not tester.is_file() or Path("/proc", tester.read_text()).exists()


nothing_left_of_a_failure = ending_after_a_failure("lab")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab of five nodes in a copy of the project, removed at the end."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("lockstep lab")
    copy_project(root)
    (root / ".lockstep").mkdir(exist_ok=True)
    (root / TESTER).write_text(str(os.getpid()))
    remove_remains()
    # What was fetched from a registry once is not fetched again.
    for name in SHARED:
        (ROOT / ".lockstep" / name).mkdir(parents=True, exist_ok=True)
        (root / ".lockstep" / name).symlink_to(ROOT / ".lockstep" / name)
    made = Lab(root, "inventory/lab")
    try:
        done = made.up(f"nodes={NODES}", check=False)
        reason = refusal(done.stdout)
        if done.returncode != 0 and reason and not os.environ.get("CI"):
            pytest.skip(reason)
        assert done.returncode == 0, done.stdout
        yield made
    finally:
        made.up("state=absent")


@pytest.fixture(scope="session")
def cluster(lab: Lab) -> Lab:
    """The lab, able to train."""
    lab.play("provision", timeout=900)
    return lab
