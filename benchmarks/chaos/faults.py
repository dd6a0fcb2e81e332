"""Faults of a host, a process, a link or a file: each a context in which the fault holds."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.shared.lab_nodes import Lab
from control.remote.worker_files import parse

OFF_S, CUT_S, FROZEN_S, SLOW_S, FULL_S = 30.0, 30.0, 60.0, 60.0, 30.0
"""Seconds that faults last which end by themselves."""
FLIP = (
    "import os, sys; stream = open(sys.argv[1], 'r+b'); stream.seek(os.path.getsize(sys.argv[1]) // 2); "
    "byte = stream.read(1)[0]; stream.seek(-1, 1); stream.write(bytes([byte ^ 1]))"
)
HUNGRY = "held = [bytearray(8 << 20) for _ in range(64)]"
ROOM = 8 << 20
KILLED_WITHIN_S = 30.0


@dataclass(frozen=True)
class Scene:
    """A training that runs on the lab."""

    lab: Lab
    run: str
    root: str
    """`worker_root` of the nodes."""
    hosts: Sequence[str]
    """By rank."""
    watch: Callable[[], "subprocess.Popen[bytes]"]
    """Starts the command that watches it, in a session of its own."""

    @property
    def folder(self) -> str:
        """The run directory on a node."""
        return f"{self.root}/runs/{self.run}"

    def pid(self, host: str, program: str) -> int:
        """Process of the `worker`, or of its `supervisor`, of a host; 0 if it has none."""
        written = self.lab.on(host, "sh", "-c", f"cat {self.folder}/workers/{host}/supervisor.json 2>/dev/null || true")
        return int(parse(written)["pids"].get(program, 0)) if written.strip() else 0

    def signal(self, host: str, program: str, number: int) -> None:
        """Send a signal to the worker or supervisor of a host; nothing if it is gone."""
        if pid := self.pid(host, program):
            self.lab.on(host, "sh", "-c", f"kill -{number} {pid} 2>/dev/null || true")

    def newest_state(self) -> str:
        """The chief's newest state; empty if there is none."""
        return self.lab.on(self.hosts[0], "sh", "-c", f"ls -t {self.folder}/state/* 2>/dev/null | head -n 1").strip()


Fault = Callable[[Scene, str], "contextlib.AbstractContextManager[float | None]"]
"""Context manager of one fault on one host: entering lasts until the fault has begun, leaving until it is over. The value is when the fault
began (seconds since 1970), None: at entering."""


def _once(inject: Callable[[Scene, str], float | None]) -> Fault:
    """A fault that is over when it has happened; `inject` returns what is the value of a `Fault`."""

    @contextlib.contextmanager
    def fault(scene: Scene, host: str) -> Iterator[float | None]:
        yield inject(scene, host)

    return fault


def _lasting(seconds: float, during: Fault) -> Fault:
    """A fault that lasts."""

    @contextlib.contextmanager
    def fault(scene: Scene, host: str) -> Iterator[float | None]:
        with during(scene, host) as began:
            yield began
            time.sleep(seconds)

    return fault


def _kill(scene: Scene, host: str, program: str = "worker") -> float:
    began = time.time()
    scene.signal(host, program, signal.SIGKILL)
    return began


def _killed(program: str) -> Fault:
    return _once(lambda scene, host: _kill(scene, host, program))


@_once
def _all_workers_killed(scene: Scene, _: str) -> None:
    """As when the power of all goes: at once, before any of them has begun again."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda host: _kill(scene, host), scene.hosts))


@_once
def _tmux_killed(scene: Scene, host: str) -> None:
    """With every session of its user."""
    scene.lab.on(host, "su", "lockstep", "-c", "tmux -L lockstep kill-server")


@contextlib.contextmanager
def _frozen(scene: Scene, host: str) -> Iterator[None]:
    """The worker is stopped, and goes on if it still lives."""
    pid = scene.pid(host, "worker")
    scene.lab.on(host, "kill", "-STOP", str(pid))
    try:
        yield
    finally:
        scene.lab.on(host, "sh", "-c", f"kill -CONT {pid} 2>/dev/null || true")


def cut(*chains: str) -> Fault:
    """The node's packets are dropped: those that come in, go out, or both; not those to itself."""
    own = {"input": "iifname", "output": "oifname"}
    rules = "".join(f"chain {hook} {{ type filter hook {hook} priority -300; meta {own[hook]} lo accept; drop; }}; " for hook in chains)

    @contextlib.contextmanager
    def fault(scene: Scene, host: str) -> Iterator[None]:
        scene.lab.on(host, "nft", f"table inet chaos {{ {rules} }}")
        try:
            yield
        finally:
            scene.lab.on(host, "nft", "delete", "table", "inet", "chaos")

    return fault


@contextlib.contextmanager
def _disk_full(scene: Scene, _: str) -> Iterator[None]:
    """The chief's folder of states has no room, nor what was in it."""
    chief, folder = scene.hosts[0], f"{scene.folder}/state"
    scene.lab.on(chief, "mount", "-t", "tmpfs", "-o", "size=4k,mode=0777", "tmpfs", folder)
    try:
        scene.lab.on(chief, "sh", "-c", f"head -c 8192 /dev/zero > {folder}/.filler 2>/dev/null || true")
        yield
    finally:
        scene.lab.on(chief, "umount", "--lazy", folder)


@_once
def _state_corrupted(scene: Scene, host: str) -> float:
    """A byte in the middle of the newest state, and a restart that reads it."""
    path = scene.newest_state()
    scene.lab.on(scene.hosts[0], "python3", "-c", FLIP, path)
    return _kill(scene, host)


@_once
def _state_cut_short(scene: Scene, host: str) -> float:
    """The newest state loses its second half, and a restart reads it."""
    scene.lab.on(scene.hosts[0], "sh", "-c", 'truncate -s $(( $(stat -c %s "$1") / 2 )) "$1"', "sh", scene.newest_state())
    return _kill(scene, host)


@_once
def _restarted(scene: Scene, host: str) -> None:
    """The node's power goes, and comes back at once."""
    scene.lab.engine.ask("restart", "--time", "0", scene.lab.containers[host])


@contextlib.contextmanager
def _powered_off(scene: Scene, host: str) -> Iterator[None]:
    """The node's power goes."""
    scene.lab.engine.ask("kill", scene.lab.containers[host])
    try:
        yield
    finally:
        scene.lab.engine.ask("start", scene.lab.containers[host])


@_once
def _watcher_killed(scene: Scene, _: str) -> float:
    """The command that watches, which sees the training first."""
    process = scene.watch()
    deadline = time.monotonic() + KILLED_WITHIN_S
    shown = b""
    while b"epoch" not in shown and process.poll() is None and time.monotonic() < deadline:
        shown += process.stdout.read1(4096) if process.stdout else b""  # type: ignore[attr-defined]
    began = time.time()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return began


@contextlib.contextmanager
def _out_of_memory(scene: Scene, host: str) -> Iterator[float]:
    """The node has no memory left, and its kernel kills the largest process: the worker."""
    pid, began = scene.pid(host, "worker"), time.time()
    with scene.lab.memory(host, ROOM):
        deadline = time.monotonic() + KILLED_WITHIN_S
        while _runs(scene, host, pid) and time.monotonic() < deadline:
            began = time.time()
            scene.lab.on(host, "sh", "-c", f"python3 -c '{HUNGRY}' >/dev/null 2>&1 || true")
        yield began


def _runs(scene: Scene, host: str, pid: int) -> bool:
    return scene.lab.on(host, "sh", "-c", f"test -d /proc/{pid} && echo yes || true").strip() == "yes"


@contextlib.contextmanager
def _shared_folder_gone(scene: Scene, host: str) -> Iterator[float]:
    """The node's shared folder is not mounted, and its worker must start again."""
    path = scene.lab.on(host, "findmnt", "-rno", "TARGET", "-t", "fuse.glusterfs").split()[0]
    scene.lab.on(host, "umount", "--lazy", path)
    try:
        yield _kill(scene, host)
    finally:
        scene.lab.on(host, "mount", path)


CHIEF, OTHER = "chief", "other"
FAULTS: dict[str, tuple[Fault, str]] = {
    "worker-killed": (_killed("worker"), OTHER),
    "chief-killed": (_killed("worker"), CHIEF),
    "all-killed": (_all_workers_killed, CHIEF),
    "supervisor-killed": (_killed("supervisor"), OTHER),
    "tmux-killed": (_tmux_killed, OTHER),
    "worker-frozen": (_lasting(FROZEN_S, _frozen), OTHER),
    "network-cut": (_lasting(CUT_S, cut("input", "output")), OTHER),
    "deaf": (_lasting(CUT_S, cut("input")), OTHER),
    "slow-link": (_lasting(SLOW_S, lambda scene, host: scene.lab.link(host, "1mbit")), OTHER),
    "disk-full": (_lasting(FULL_S, _disk_full), CHIEF),
    "state-corrupted": (_state_corrupted, OTHER),
    "state-cut-short": (_state_cut_short, OTHER),
    "node-restarted": (_restarted, OTHER),
    "chief-node-restarted": (_restarted, CHIEF),
    "node-off": (_lasting(OFF_S, _powered_off), OTHER),
    "watcher-killed": (_watcher_killed, CHIEF),
    "out-of-memory": (_out_of_memory, OTHER),
    "folder-gone": (_lasting(CUT_S, _shared_folder_gone), OTHER),
}
"""By name: the fault, and whom it befalls."""
