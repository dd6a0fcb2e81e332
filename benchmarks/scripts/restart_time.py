"""From a killed worker to the next training step, where the time goes, without and with a process that stands by.

    .venv/bin/python benchmarks/scripts/restart_time.py [--rounds 3] [--host NAME] [--set KEY=VALUE,...] [ansible-playbook arguments]

In each round a run is trained twice under supervision, with `recovery.standby` and without, in an order that changes from round to
round. Once it has trained for `--after` seconds, the worker of one host (the last, by default) is killed with SIGKILL there; `--wait`
seconds later the run is stopped. All times are by that host's clock: when its supervisor noticed, when all had agreed and the next worker
was started, and when that worker entered each phase. Give a training that lasts, as `-e config=task_cnn -e epochs=1000`.
"""

import itertools
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.scripts.launch_time import delete, inventory, play
from benchmarks.shared import script
from benchmarks.shared.script import ROOT
from control.remote.worker_files import read_records
from trainer.rundir.launch_record import LaunchRecord
from trainer.rundir.phases import Phase

ANSIBLE = str(Path(sys.executable).parent / "ansible")
KILL = (
    'python3 -c \'import json, os, sys, time; pid = json.load(open(sys.argv[1]))["pids"]["worker"]; print(time.time()); os.kill(pid, 9)\' '
    "{{{{ (worker_root ~ '/runs/{run}/workers/' ~ inventory_hostname ~ '/supervisor.json') | quote }}}}"
)
"""A shell command, in which Ansible fills in the host's variables; it prints when."""
PARTS = {
    Phase.REJOINING: "its supervisor notices",
    "generation": "the others notice, all agree",
    Phase.CACHING: "Python starts, or takes over",
    Phase.JOINING: "open the cache",
    Phase.BUILDING: "import TensorFlow, join the cluster",
    Phase.CHOOSING: "build the model",
    Phase.TRACING: "choose how to send",
    Phase.RESTORING: "trace",
    Phase.TRAINING: "restore, compare weights",
    "steps": "run the first call",
}


def main() -> None:
    """Measure and print."""
    parser = script.parser(__doc__, rounds=3)
    parser.add_argument("--host", help="whose worker is killed; default: the last one's")
    parser.add_argument("--set", default="", help="further settings of the configuration, as -e set= takes them")
    parser.add_argument("--after", type=float, default=60.0, help="seconds of training before that; what stands by needs them to import")
    parser.add_argument("--wait", type=float, default=90.0, help="seconds after it")
    given, more = parser.parse_known_args()
    rounds = []
    for number in range(given.rounds):
        ways = (False, True)[:: 1 if number % 2 == 0 else -1]
        rounds.append(
            {standby: measured(f"restart-time-{number}-{'with' if standby else 'without'}", standby, given, more) for standby in ways}
        )
    print(f"{'without':>24}{'with standby':>26}")
    for name, meaning in {"": "s, SIGKILL to the next step", **PARTS}.items():
        print("".join(column([one[way].get(name, 0.0) for one in rounds]) for way in (False, True)), meaning, sep="  ")


def column(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):10.2f} ({min(values):.2f} to {max(values):.2f})".rjust(26)


def measured(run: str, standby: bool, given: Any, more: list[str]) -> dict[str, float]:
    """Seconds of each part, by name, and of the whole."""
    folder = ROOT / "runs" / run
    delete(ROOT, run, more)
    settings = ["recovery.max_restarts=3", f"recovery.standby={str(standby).lower()}", *([given.set] if given.set else [])]
    play(ROOT, "train.yml", run, [*more, "-e", f"set={','.join(settings)}", "-e", "detach=true"])
    host = given.host or LaunchRecord.read(folder).hosts[-1].name
    time.sleep(given.after)
    at = killed(run, host, more)
    time.sleep(given.wait)
    play(ROOT, "stop.yml", run, inventory(more))
    seconds = parts(at, read_records(folder / "workers" / host / "metrics.jsonl"))
    delete(ROOT, run, more)
    if "steps" not in seconds:
        sys.exit(f"{run}: no step within {given.wait:.0f} s after the kill, only {', '.join(seconds) or 'nothing'}; give a larger --wait")
    return {"": sum(seconds.values()), **seconds}


def killed(run: str, host: str, more: list[str]) -> float:
    """Kill the worker of a host; when, by the host's clock."""
    argv = [ANSIBLE, host, *inventory(more), "-m", "ansible.builtin.shell", "-a", KILL.format(run=run)]
    ended = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True)
    if ended.returncode != 0 or ">>" not in ended.stdout:
        sys.exit(f"{host}: its worker could not be killed:\n{ended.stdout}{ended.stderr}")
    return float(ended.stdout.rpartition(">>")[2].split()[0])


def parts(at: float, records: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds until each of `PARTS` first appears after a time, counted from the one before."""
    first: dict[str, float] = {}
    for record in records:
        if record["t"] >= at:
            name = str(record["phase"]) if record["kind"] == "phase" else str(record["kind"])
            first.setdefault(name, record["t"])
    if Phase.REJOINING not in first:
        return {}
    after = {name: first[name] for name in PARTS if name in first}
    return {name: now - before for name, (before, now) in zip(after, itertools.pairwise([at, *after.values()]), strict=True)}


if __name__ == "__main__":
    main()
