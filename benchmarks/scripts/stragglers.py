"""How often the right straggler is named with the right cause: trainings on the lab, one host of which is slowed in a known way.

    .venv/bin/python benchmarks/scripts/stragglers.py -i inventory/lab [--cases even,quota,load,link,disk,memory] [--repeats 10]
        [--cpus 0.3] [ansible-playbook arguments: configuration and dataset]

Cases alternate, each on a host drawn at random, from a seed; needs root, and a lab of equal nodes (`lab.yml -e cpus=0.3`). A training
counts as right if its last comparison of the workers names that host and that cause, or, of equal hosts, if no comparison names any.
Rows are added to `.lockstep/stragglers.csv`.
"""

import contextlib
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.shared import lab_nodes, script
from benchmarks.shared.lab_nodes import Lab
from control.campaign.store import Store
from control.common import project, text
from control.remote.worker_files import chief_records
from trainer.common.errors import LockstepError
from trainer.rundir.launch_record import LaunchRecord

FILE = project.PRIVATE / "stragglers.csv"
EVEN, RUN = "even", "straggler"
EPOCH = "epoch {}/"
"""How the line of `train.yml` on a finished epoch begins."""
ROOM = 160 * 2**20
"""Bytes of memory for pages of files: fewer than a worker uses."""
BLOCKS = {"blkio": ("blkio.throttle.read_bps_device", "3000000", "0"), "": ("io.max", "rbps=3000000", "rbps=max")}
"""File that limits reading, the limit, and no limit; by controller, which has no name in version 2 of control groups."""


@dataclass(frozen=True)
class Row:
    """One training: what was done to which host, and what was named last (empty: nothing)."""

    measured: ClassVar[bool] = True
    number: int
    case: str
    host: str
    named: str
    cause: str

    @property
    def trial(self) -> int:
        """Number of the training, from 1."""
        return self.number

    @property
    def right(self) -> bool:
        """True if host and cause are right."""
        return (self.named, self.cause) == (("", "") if self.case == EVEN else (self.host, self.case))


STORE = Store(Row)


@contextlib.contextmanager
def _busy_process(lab: Lab, host: str) -> Iterator[None]:
    """Another process computes on the node."""
    process = int(lab.on(host, "sh", "-c", "python3 -c 'while True: pass' >/dev/null 2>&1 & echo $!"))
    try:
        yield
    finally:
        lab.on(host, "kill", str(process))


@contextlib.contextmanager
def _slow_disk(lab: Lab, host: str) -> Iterator[None]:
    """The node reads 3 MB/s, and what its worker has not yet used is not in memory."""
    device = subprocess.run(["findmnt", "-no", "MAJ:MIN", "-T", "/var"], check=True, capture_output=True, text=True).stdout.strip()
    # podman's own option for this does nothing in version 1 of control groups.
    process = lab.engine.ask("inspect", "--format", "{{.State.Pid}}", lab.containers[host]).strip()
    group = re.search(r"^\d+:(blkio|):(.*)$", Path(f"/proc/{process}/cgroup").read_text(encoding="utf-8"), re.MULTILINE)
    if group is None:
        raise LockstepError(f"{host}: its control group limits no disk")
    name, limited, free = BLOCKS[group[1]]
    file = Path("/sys/fs/cgroup", group[1], group[2].lstrip("/"), name)
    file.write_text(f"{device} {limited}", encoding="utf-8")
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1", encoding="utf-8")
        yield
    finally:
        file.write_text(f"{device} {free}", encoding="utf-8")


@dataclass(frozen=True)
class Case:
    """How a host is slowed, and how the training is set for it."""

    slowed: Callable[[Lab, str], "contextlib.AbstractContextManager[None]"]
    before: bool = True
    """Slowed before the training starts; else after its first epoch, where start-up would fail or take minutes."""
    steps: int = 120
    profile_every: int = 5
    more: str = ""

    @property
    def settings(self) -> str:
        """Value of `-e set=`: two epochs."""
        lengths = f"train.steps={self.steps},train.steps_per_epoch={self.steps // 2},telemetry.profile_every={self.profile_every}"
        return lengths + self.more


CASES = {
    EVEN: Case(lambda *_: contextlib.nullcontext()),
    "quota": Case(Lab.half_the_cpus),
    "load": Case(_busy_process),
    # Compressed gradients hardly notice the link; uncompressed, a step takes 4 s.
    "link": Case(lambda lab, host: lab.link(host, "50mbit"), steps=12, profile_every=2, more=",reduction.name=packed"),
    # After more steps a worker would have read all images: they are few.
    "disk": Case(_slow_disk, before=False, steps=36, profile_every=1),
    # The node's memory holds what can't be given back, and little more.
    "memory": Case(lambda lab, host: lab.memory(host, ROOM), before=False),
}


def main() -> None:
    """Measure, record and print."""
    line = script.parser(__doc__, repeats=10, seed=1)
    line.add_argument("--cases", type=lambda given: script.names(given, CASES), default=list(CASES))
    line.add_argument("--cpus", type=float, default=0.3, help="CPUs of a node")
    given, more = line.parse_known_args()
    STORE.read(FILE)  # refuses a file with other columns before anything is measured
    generator, commands = random.Random(given.seed), script.Commands(tuple(more))
    # What ends this program ends the training and gives the host its limits back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    lab = lab_nodes.nodes_of_script(given.cpus)
    for repeat in range(1, given.repeats + 1):
        for case in generator.sample(given.cases, len(given.cases)):
            host = generator.choice(sorted(lab.containers))
            commands.delete(RUN)
            _train(CASES[case], lab, host, commands)
            row = Row(len(STORE.read(FILE)) + 1, case, host, *named(commands.folder(RUN), case))
            commands.delete(RUN)
            STORE.put(FILE, row)
            print(f"{repeat}: {case} on {host}: {row.cause or 'nothing'} {row.named} {'' if row.right else 'WRONG'}", flush=True)
    print(table(STORE.read(FILE)))


def _train(case: Case, lab: Lab, host: str, commands: script.Commands) -> None:
    """Train with a host slowed."""
    with contextlib.ExitStack() as begun:
        training = begun.enter_context(commands.start("train.yml", "-e", f"run={RUN}", "-e", f"set={case.settings}", *commands.more))
        begun.callback(training.terminate)
        slowed, lines = begun.enter_context(contextlib.ExitStack()), list[str]()
        if case.before:
            slowed.enter_context(case.slowed(lab, host))
        for output in training.stdout or ():
            lines.append(output)
            if not case.before and output.startswith(EPOCH.format(1)):
                slowed.enter_context(case.slowed(lab, host))
            if output.startswith(EPOCH.format(2)):
                slowed.close()
        if training.wait() != 0:
            sys.exit(f"{host}: train.yml ended with exit code {training.returncode}:\n" + "".join(lines[-20:]))


def named(run: Path, case: str) -> tuple[str, str]:
    """Host and cause of the last comparison; of equal hosts, of any that names one."""
    hosts = [host.name for host in LaunchRecord.read(run).hosts]
    compared = [record for record in chief_records(run) if record["kind"] == "straggler"]
    if not compared:
        raise LockstepError(f"{run.name}: the workers were not compared; train for more steps (telemetry.profile_every)")
    naming = [record for record in compared if record["cause"]] if case == EVEN else compared
    last = naming[-1] if naming else compared[-1]
    return (hosts[last["rank"]], last["cause"]) if last["cause"] else ("", "")


def table(rows: Sequence[Row]) -> str:
    """By case: how many were right, and what was named wrongly."""
    cells = []
    for case in [name for name in CASES if any(row.case == name for row in rows)]:
        group = [row for row in rows if row.case == case]
        wrong = ", ".join(f"{row.cause or 'nothing'} {row.named}".strip() for row in group if not row.right)
        cells.append([case, sum(row.right for row in group), len(group), wrong or "-"])
    return text.table(["case", "right", "of", "named instead"], cells)


if __name__ == "__main__":
    main()
