"""Real hosts: containers with SSH, systemd, GlusterFS and a firewall, driven through the playbooks."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.project import ROOT, Project, await_during, await_until, copy_project, ending_after_a_failure
from trainer.host import fork_server

EVERYTHING = os.environ.get("LOCKSTEP_TESTS") == "all"
NODES = 5 if EVERYTHING else 3
"""Three make a replicated volume; the exhaustive tests need hosts beside it, and trials side by side."""
PREFIX, SUBNET = "lockstep-test", "10.89.78.0/24"
NAMES = [f"node{number}" for number in range(1, NODES + 1)]
SETTINGS = (f"lab_prefix={PREFIX}", f"lab_subnet={SUBNET}")
SIZE = (f"nodes={NODES}", f"cpus={len(os.sched_getaffinity(0))}")
"""A node may take the whole machine: what one does alone is quick, and nothing here is measured."""
WORKER_ROOT = "/home/lockstep/lockstep"
SHORT = ("config=lecture_cnn", "epochs=2", "set=train.steps_per_epoch=5,data.limit_train=2000,reduction.name=packed")
LONG = ("config=lecture_cnn", "epochs=2000", "set=train.steps_per_epoch=20,data.limit_train=6400,reduction.name=packed")
SHARED = ("wheels", "sources")
END = f"""cd {WORKER_ROOT} && rm -f queue/* && for folder in runs/*/workers/*/; do touch "$folder/stop"; done
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
        node = json.loads(self.container("container", "inspect", f"{PREFIX}-node1"))[0]
        # With the lab's labels it goes with the lab, too, should these tests be killed.
        labels = [word for name, value in node["Config"]["Labels"].items() if "lockstep" in name for word in ("--label", f"{name}={value}")]
        settings = self.root / ".lockstep" / "lab" / "containers.conf"
        with pytest.MonkeyPatch.context() as patch:
            if settings.is_file():
                patch.setenv("CONTAINERS_CONF", str(settings))
            self.container(
                "run", "-d", "--name", name, "--network", PREFIX, "--ip", address, *labels, node["ImageName"], "sleep", "infinity"
            )
        try:
            yield name
        finally:
            self.container("rm", "-f", "-t", "0", name)

    def cut(self, node: int) -> None:
        """Unplug a node from the network."""
        self.on(node, "ip link set eth0 down")

    def join(self, node: int) -> None:
        """Plug a node in again; the cluster is ready when a training passes its look at the hosts."""
        self.on(node, f"ip link set eth0 up; ip route replace default via {SUBNET.rpartition('.')[0]}.1")
        self.await_ready(f"node{node} back")

    def await_ready(self, what: str) -> None:
        """Wait until a training would start."""
        looks = []

        def ready() -> bool:
            looks.append(self.play("train", "--check", "run=ready", check=False))
            return looks[-1].returncode == 0

        try:
            await_until(ready, 90, what)
        except AssertionError as late:
            late.add_note(looks[-1].stdout[-3000:] + looks[-1].stderr[-1000:])
            raise

    @contextlib.contextmanager
    def unplugged(self, node: int) -> Iterator[None]:
        """A node out of the network for a while."""
        self.cut(node)
        try:
            yield
        finally:
            self.join(node)

    @contextlib.contextmanager
    def broken(self, node: int, breaking: str, fixing: str) -> Iterator[None]:
        """A node that is out of order for a while."""
        try:
            self.on(node, breaking)
            yield
        finally:
            self.on(node, fixing)

    @contextlib.contextmanager
    def user(self, node: int, name: str) -> Iterator[None]:
        """An ordinary user of a node."""
        with self.broken(node, f"useradd -m {name}", f"userdel -rf {name} 2>&1"):
            yield

    @contextlib.contextmanager
    def listening(self, node: int, *ports: int, user: str = "root") -> Iterator[None]:
        """A program of a user that accepts connections to ports of a node, on all of its addresses."""
        code = f"import socket, signal; held = [socket.create_server(('0.0.0.0', port)) for port in {list(ports)}]; signal.pause()"
        self.container("exec", "-d", "-u", user, f"{PREFIX}-node{node}", "python3", "-c", code)
        try:
            await_until(lambda: all(f":{port} " in self.on(node, "ss -ltn") for port in ports), 60, f"node{node} listens to {ports}")
            yield
        finally:
            self.on(node, f"ss -ltnp 'sport = :{ports[0]}' | sed -n 's/.*pid=\\([0-9]*\\).*/\\1/p' | xargs -r kill")
            await_until(lambda: f":{ports[0]} " not in self.on(node, "ss -ltn"), 60, f"nobody listens to {ports} on node{node}")

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
        """Names of the tmux sessions on a node, those that wait for a launch left out; the user who trains has a tmux server of his own."""
        names = self.on(node, "runuser -u lockstep -- tmux -L lockstep ls -F '#{session_name}' 2>/dev/null", check=False).split()
        return [name for name in names if not name.startswith(fork_server.NAME)]

    def end_all(self) -> None:
        """End what this project has started and not ended: commands, and everything that its user runs on the nodes."""
        self.end_started()
        for node in range(1, NODES + 1):
            self.on(node, END, check=False)
            await_until(
                lambda node=node: not self.on(node, "pgrep -u lockstep -f trainer", check=False), 60, f"the end of all on node{node}"
            )

    def await_steps(self, node: int, run: str, steps: int, playbook: subprocess.Popen[str] | None = None) -> None:
        """Wait until a node has recorded `steps` steps of a run; fail if the command that watches it ends first."""
        await_during(playbook, lambda: self.steps(node, run) >= steps, 240, f"{run}: {steps} steps")

    def own(self, node: int, run: str, name: str) -> str:
        """The text of a file that a node writes of a run; empty while it is not there."""
        return self.on(node, f"cat {WORKER_ROOT}/runs/{run}/workers/node{node}/{name} 2>/dev/null", check=False)

    def steps(self, node: int, run: str) -> int:
        """Steps that a node has recorded of a run."""
        lines = self.own(node, run, "metrics.jsonl").splitlines()
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
    project = holder(engine)
    if project is not None and not in_use(Path(project)):
        remove(engine, project)


def holder(engine: str) -> str | None:
    """The project whose lab has the tests' network."""
    if shutil.which(engine) is None:
        return None
    network = subprocess.run([engine, "network", "inspect", PREFIX], capture_output=True, text=True, check=False)
    return json.loads(network.stdout)[0].get("labels", {}).get("lockstep.project") if network.returncode == 0 else None


def remove(engine: str, project: str) -> None:
    """Remove the containers and the network of a project's lab with the engine alone."""
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


@contextlib.contextmanager
def removed_when_terminated() -> Iterator[None]:
    """SIGTERM as Ctrl-C: whoever ends these tests early gets the machine back as it was."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab in a copy of the project, removed at the end."""
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
    with removed_when_terminated():
        try:
            done = made.up(*SIZE, check=False)
            reason = refusal(done.stdout)
            if done.returncode != 0 and reason and not os.environ.get("CI"):
                pytest.skip(reason)
            assert done.returncode == 0, done.stdout
            yield made
        finally:
            made.end_started()
            gone = made.up("state=absent", check=False)
            if holder(made.engine) == str(root):
                remove(made.engine, str(root))
            assert gone.returncode == 0, gone.stdout + gone.stderr


@pytest.fixture(scope="session")
def cluster(lab: Lab) -> Lab:
    """The lab, able to train: provisioned from bare."""
    done = lab.play("provision", timeout=900)
    assert set(recap(done.stdout)) == set(NAMES), done.stdout
    assert all(counts["changed"] for counts in recap(done.stdout).values()), done.stdout
    return lab


@pytest.fixture(scope="session")
def first(cluster: Lab) -> str:
    """Digest of the weights of the run `first`, of all hosts: the one that data and code are published for."""
    done = cluster.play("train", "run=first", *SHORT)
    assert "first: SUCCEEDED" in done.stdout, done.stdout
    return str(cluster.summary("first")["weights_sha256"])


def recap(output: str) -> dict[str, dict[str, int]]:
    """Ansible's counts by host."""
    lines = output.partition("PLAY RECAP")[2].splitlines()[1:]
    rows = [line.split(":", 1) for line in lines if " ok=" in line]
    return {name.strip(): {key: int(value) for key, _, value in (pair.partition("=") for pair in rest.split())} for name, rest in rows}


def changed(output: str) -> int:
    """How often a playbook changed something on any host."""
    counts = recap(output)
    assert counts
    return sum(row["changed"] for row in counts.values())


def spaced(output: str) -> str:
    """An output with single spaces: columns are as wide as their widest cell."""
    return re.sub(" +", " ", output)
