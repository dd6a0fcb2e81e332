"""How often the right straggler is named with the right cause: trainings on the lab, one host of which is slowed in a known way.

    .venv/bin/python benchmarks/scripts/stragglers.py -i inventory/lab [--cases even,quota,load,link,disk,memory] [--repeats 10] [--cpus
    0.3]
        [ansible-playbook arguments: configuration and dataset]

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
from typing import NamedTuple

from benchmarks.scripts.launch_time import PLAYBOOK, delete
from benchmarks.shared import script
from benchmarks.shared.lab_nodes import Lab, nodes_of_script
from benchmarks.shared.script import ROOT
from control.common import text
from control.remote.worker_files import chief_records
from trainer.common.errors import LockstepError
from trainer.rundir.launch_record import LaunchRecord

FILE = ROOT / ".lockstep" / "stragglers.csv"
EVEN = "even"
RUN = "straggler"
EPOCH = "epoch {}/"
"""How the line of `train.yml` on a finished epoch begins."""


class Row(NamedTuple):
    """One training: what was done to which host, and what was named last (empty: nothing)."""

    case: str
    host: str
    named: str
    cause: str

    @property
    def right(self) -> bool:
        """True if host and cause are right."""
        return (self.named, self.cause) == (("", "") if self.case == EVEN else (self.host, self.case))


Slowed = Callable[[Lab, str], "contextlib.AbstractContextManager[None]"]


@contextlib.contextmanager
def _busy_process(lab: Lab, host: str) -> Iterator[None]:
    """Another process computes on the node."""
    process = int(lab.on(host, "sh", "-c", "python3 -c 'while True: pass' >/dev/null 2>&1 & echo $!"))
    try:
        yield
    finally:
        lab.on(host, "kill", str(process))


def _slow_link(lab: Lab, host: str) -> contextlib.AbstractContextManager[None]:
    """The node sends at 50 Mbit/s."""
    return lab.link(host, "50mbit")


def _slow_disk(lab: Lab, host: str) -> contextlib.AbstractContextManager[None]:
    """The node reads 3 MB/s, and what its worker has not yet used is not in memory."""
    device = subprocess.run(["findmnt", "-no", "MAJ:MIN", "-T", "/var"], check=True, capture_output=True, text=True).stdout.strip()
    # podman's own option for this does nothing in version 1 of control groups.
    process = lab.engine.ask("inspect", "--format", "{{.State.Pid}}", lab.containers[host]).strip()
    group = re.search(r"^\d+:(blkio|):(.*)$", Path(f"/proc/{process}/cgroup").read_text(encoding="utf-8"), re.MULTILINE)
    if group is None:
        raise LockstepError(f"{host}: its control group limits no disk")
    name, limited, free = BLOCKS[group[1]]
    file = Path("/sys/fs/cgroup", group[1], group[2].lstrip("/"), name)
    return _reading_slowly(file, f"{device} {limited}", f"{device} {free}")


@contextlib.contextmanager
def _reading_slowly(file: Path, limit: str, no_limit: str) -> Iterator[None]:
    file.write_text(limit, encoding="utf-8")
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1", encoding="utf-8")
        yield
    finally:
        file.write_text(no_limit, encoding="utf-8")


BLOCKS = {"blkio": ("blkio.throttle.read_bps_device", "3000000", "0"), "": ("io.max", "rbps=3000000", "rbps=max")}
"""File that limits reading, the limit, and no limit; by controller, which has no name in version 2 of control groups."""


def _little_memory(lab: Lab, host: str) -> contextlib.AbstractContextManager[None]:
    """The node's memory holds what can't be given back, and little more."""
    return lab.memory(host, ROOM)


ROOM = 160 * 2**20
"""Bytes for pages of files: fewer than a worker uses."""


@dataclass(frozen=True)
class Case:
    """How a host is slowed, and how the training is set for it."""

    slowed: Slowed
    before: bool = True
    """Slowed before the training starts; else after its first epoch, where start-up would fail or take minutes."""
    steps: int = 120
    epochs: int = 2
    profile_every: int = 5
    more: str = ""

    @property
    def settings(self) -> str:
        """Value of `-e set=`."""
        lengths = f"train.steps={self.steps},train.steps_per_epoch={self.steps // self.epochs},telemetry.profile_every={self.profile_every}"
        return lengths + self.more


CASES = {
    EVEN: Case(lambda *_: contextlib.nullcontext()),
    "quota": Case(Lab.half_the_cpus),
    "load": Case(_busy_process),
    # Compressed gradients hardly notice the link; uncompressed, a step takes 4 s.
    "link": Case(_slow_link, steps=12, profile_every=2, more=",reduction.name=packed"),
    # After more steps a worker would have read all images: they are few.
    "disk": Case(_slow_disk, before=False, steps=36, profile_every=1),
    "memory": Case(_little_memory, before=False),
}


def main() -> None:
    """Measure, record and print."""
    line = script.parser(__doc__, repeats=10, seed=1)
    line.add_argument("--cases", default=",".join(CASES))
    line.add_argument("--cpus", type=float, default=0.3, help="CPUs of a node")
    arguments, more = line.parse_known_args()
    cases, generator = arguments.cases.split(","), random.Random(arguments.seed)
    if unknown := [name for name in cases if name not in CASES]:
        sys.exit(f"cases={unknown[0]}: none of {', '.join(CASES)}")
    # What ends this program ends the training and gives the host its limits back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    lab = nodes_of_script(arguments.cpus)
    rows = script.recorded(FILE, Row)
    for repeat in range(arguments.repeats):
        for case in generator.sample(cases, len(cases)):
            rows.append(measured(lab, case, generator.choice(sorted(lab.containers)), more))
            script.record(FILE, rows)
            last = rows[-1]
            print(
                f"{repeat + 1}: {case} on {last.host}: {last.cause or 'nothing'} {last.named} {'' if last.right else 'WRONG'}", flush=True
            )
    print(table(rows))


def measured(lab: Lab, name: str, host: str, more: Sequence[str]) -> Row:
    """Train with a host slowed, and read what was named."""
    case, argv = CASES[name], [PLAYBOOK, "train.yml", "-e", f"run={RUN}", "-e", f"set={CASES[name].settings}", *more]
    delete(ROOT, RUN, list(more))
    slowing = case.slowed(lab, host)
    with contextlib.ExitStack() as begun:
        training = begun.enter_context(subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        begun.callback(training.terminate)
        slowed = begun.enter_context(contextlib.ExitStack())
        if case.before:
            slowed.enter_context(slowing)
        lines = []
        for output in training.stdout or ():
            lines.append(output)
            if not case.before and output.startswith(EPOCH.format(1)):
                slowed.enter_context(slowing)
            if output.startswith(EPOCH.format(case.epochs)):
                slowed.close()
        training.wait()
        if training.returncode != 0:
            sys.exit(f"{name} on {host}: train.yml ended with exit code {training.returncode}:\n" + "".join(lines[-20:]))
    row = Row(name, host, *named(ROOT / "runs" / RUN, name))
    delete(ROOT, RUN, list(more))
    return row


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
