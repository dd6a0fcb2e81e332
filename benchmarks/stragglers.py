"""How often the right straggler is named with the right cause: trainings on the lab, one host of which is slowed in a known way.

    .venv/bin/python benchmarks/stragglers.py -i inventory/lab [--cases even,quota,load,link,disk,memory] [--repeats 10] [--cpus 0.3]
        [ansible-playbook arguments, with -e set=train.steps=N]

Cases alternate, each on a host drawn at random, from a seed; needs root, and a lab of equal nodes (`lab.yml -e cpus=0.3`). A training
counts as right if its last comparison of the workers names that host and that cause, or, of equal hosts, if no comparison names any.
Rows are added to `.lockstep/stragglers.csv`.
"""

import contextlib
import csv
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks import script
from benchmarks.launch_time import PLAYBOOK, delete
from benchmarks.script import ROOT
from control import text
from control.lab.lab import OWNER_LABEL, owner
from control.lab.lab_engine import Engine, find
from trainer.errors import LockstepError
from trainer.files import read_json, write_text
from trainer.telemetry import chief_records

FILE = ROOT / ".lockstep" / "stragglers.csv"
EVEN = "even"
RUN = "straggler"
UNDER_WAY = "epoch 1/"
"""How a line of `train.yml` begins once it trains."""


class Row(NamedTuple):
    """One training: what was done to which host, and what was named last (empty: nothing)."""

    case: str
    host: str
    named: str
    cause: str

    @property
    def right(self) -> bool:
        """Whether host and cause are right."""
        return (self.named, self.cause) == (("", "") if self.case == EVEN else (self.host, self.case))


@dataclass(frozen=True)
class Lab:
    """The lab's nodes, by name of the worker."""

    engine: Engine
    containers: dict[str, str]
    cpus: float

    def on(self, host: str, *command: str, detach: bool = False) -> str:
        """Run a command on a node."""
        return self.engine.ask("exec", *(["--detach"] if detach else []), self.containers[host], *command)

    def limit(self, host: str, *options: str) -> None:
        """Change the limits of a node."""
        self.engine.ask("update", *options, self.containers[host])


Slowed = Callable[[Lab, str], "contextlib.AbstractContextManager[None]"]


@contextlib.contextmanager
def half_the_quota(lab: Lab, host: str) -> Iterator[None]:
    """The node may use half of its CPUs."""
    lab.limit(host, f"--cpus={lab.cpus / 2}")
    try:
        yield
    finally:
        lab.limit(host, f"--cpus={lab.cpus}")


@contextlib.contextmanager
def busy_process(lab: Lab, host: str) -> Iterator[None]:
    """Another process computes on the node."""
    process = int(lab.on(host, "sh", "-c", "python3 -c 'while True: pass' >/dev/null 2>&1 & echo $!"))
    try:
        yield
    finally:
        lab.on(host, "kill", str(process))


@contextlib.contextmanager
def slow_link(lab: Lab, host: str) -> Iterator[None]:
    """The node sends at 50 Mbit/s."""
    lab.on(host, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "50mbit", "burst", "16kb", "latency", "100ms")
    try:
        yield
    finally:
        lab.on(host, "tc", "qdisc", "del", "dev", "eth0", "root")


@contextlib.contextmanager
def slow_disk(lab: Lab, host: str) -> Iterator[None]:
    """The node reads 2 MB/s, and nothing that was read before is in memory."""
    device = subprocess.run(["findmnt", "-no", "SOURCE", "-T", "/var"], check=True, capture_output=True, text=True).stdout.strip()
    lab.limit(host, f"--device-read-bps={device}:2mb")
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1", encoding="utf-8")
        yield
    finally:
        lab.limit(host, f"--device-read-bps={device}:0")


@contextlib.contextmanager
def little_memory(lab: Lab, host: str) -> Iterator[None]:
    """The node's memory holds what can't be given back, and little more."""
    statistics = dict(line.split() for line in lab.on(host, "sh", "-c", MEMORY).splitlines())
    kept = int(statistics.get("total_rss") or statistics["anon"])
    size = kept + ROOM
    lab.limit(host, f"--memory={size}", f"--memory-swap={size}")
    try:
        yield
    finally:
        lab.limit(host, "--memory=3g", "--memory-swap=6g")


MEMORY = "cat /sys/fs/cgroup/memory/memory.stat 2>/dev/null || cat /sys/fs/cgroup/memory.stat"
ROOM = 80 * 2**20
"""Bytes for pages of files: fewer than a worker uses."""
BEFORE: dict[str, Slowed] = {EVEN: lambda *_: contextlib.nullcontext(), "quota": half_the_quota, "load": busy_process, "link": slow_link}
"""Slowed before the training starts."""
WHILE: dict[str, Slowed] = {"disk": slow_disk, "memory": little_memory}
"""Slowed once it trains: start-up would fail or take minutes."""
SET = {"link": ",reduction.name=packed"}
"""Compressed gradients hardly notice the link."""


def main() -> None:
    """Measure, record and print."""
    line = script.parser(__doc__, repeats=10, seed=1)
    line.add_argument("--cases", default=",".join([*BEFORE, *WHILE]))
    line.add_argument("--cpus", type=float, default=0.3, help="CPUs of a node")
    arguments, more = line.parse_known_args()
    cases, generator = arguments.cases.split(","), random.Random(arguments.seed)
    if unknown := [name for name in cases if name not in BEFORE | WHILE]:
        sys.exit(f"cases={unknown[0]}: none of {', '.join([*BEFORE, *WHILE])}")
    lab, rows = nodes(arguments.cpus), recorded(FILE)
    for repeat in range(arguments.repeats):
        for case in generator.sample(cases, len(cases)):
            rows.append(measured(lab, case, generator.choice(sorted(lab.containers)), more))
            record(FILE, rows)
            last = rows[-1]
            print(
                f"{repeat + 1}: {case} on {last.host}: {last.cause or 'nothing'} {last.named} {'' if last.right else 'WRONG'}", flush=True
            )
    print(table(rows))


def nodes(cpus: float) -> Lab:
    """This project's lab."""
    engine = find()
    mine = [one for one in engine.labs() if one["running"] and one["labels"][OWNER_LABEL] == owner(str(ROOT))] if engine else []
    if engine is None or not mine:
        sys.exit("no lab of this project is running here: ansible-playbook lab.yml -e cpus=0.3; then provision.yml")
    return Lab(engine, {one["container"].rpartition("-")[2]: one["container"] for one in mine}, cpus)


def measured(lab: Lab, case: str, host: str, more: Sequence[str]) -> Row:
    """Train with a host slowed, and read what was named."""
    options = [f"{word}{SET.get(case, '')}" if word.startswith("set=") else word for word in more]
    argv = [PLAYBOOK, "train.yml", "-e", f"run={RUN}", *options]
    if (ROOT / "runs" / RUN).exists():
        delete(ROOT, RUN, list(more))
    with contextlib.ExitStack() as slowed:
        if case in BEFORE:
            slowed.enter_context(BEFORE[case](lab, host))
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as training:
            lines = []
            for output in training.stdout or ():
                lines.append(output)
                if case in WHILE and output.startswith(UNDER_WAY):
                    slowed.enter_context(WHILE[case](lab, host))
                    break
            lines += training.stdout or ()
        if training.returncode != 0:
            sys.exit(f"{case} on {host}: train.yml ended with exit code {training.returncode}:\n" + "".join(lines[-20:]))
    row = Row(case, host, *named(ROOT / "runs" / RUN, case))
    delete(ROOT, RUN, list(more))
    return row


def named(run: Path, case: str) -> tuple[str, str]:
    """Host and cause of the last comparison; of equal hosts, of any that names one."""
    hosts = [host["name"] for host in read_json(run / "cluster.json")["hosts"]]
    compared = [record for record in chief_records(run) if record["kind"] == "straggler"]
    if not compared:
        raise LockstepError(f"{run.name}: the workers were not compared; train for more steps (telemetry.profile_every)")
    naming = [record for record in compared if record["cause"]] if case == EVEN else compared
    last = naming[-1] if naming else compared[-1]
    return (hosts[last["rank"]], last["cause"]) if last["cause"] else ("", "")


def recorded(file: Path) -> list[Row]:
    """The rows of earlier measurements."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        return [Row(**row) for row in csv.DictReader(stream)]


def record(file: Path, rows: Sequence[Row]) -> None:
    """Write all rows."""
    write_text(file, "\n".join([",".join(Row._fields), *map(",".join, rows)]) + "\n")


def table(rows: Sequence[Row]) -> str:
    """By case: how many were right, and what was named wrongly."""
    cells = []
    for case in [name for name in [*BEFORE, *WHILE] if any(row.case == name for row in rows)]:
        group = [row for row in rows if row.case == case]
        wrong = ", ".join(f"{row.cause or 'nothing'} {row.named}".strip() for row in group if not row.right)
        cells.append([case, sum(row.right for row in group), len(group), wrong or "-"])
    return text.table(["case", "right", "of", "named instead"], cells)


if __name__ == "__main__":
    main()
