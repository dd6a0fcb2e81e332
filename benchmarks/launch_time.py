"""From Enter to the first training step, and where the time goes.

    .venv/bin/python benchmarks/launch_time.py [--runs 3] [ansible-playbook arguments]

Starts `ansible-playbook train.yml -e quick=true` N times (`--runs`) after one warm-up, reads the chief's
record of its phases, and prints the median of each part. The first step counts as done when the first
call reports (it has `train.steps_per_call` steps).
"""

import itertools
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import script
from benchmarks.script import ROOT
from trainer.telemetry import chief_records

PARTS = {
    "starting": "Ansible: plan, publish, claim, files, tmux",
    "caching": "Python starts",
    "joining": "open the cache",
    "building": "import TensorFlow, join the cluster",
    "choosing how to send gradients": "build the model",
    "tracing": "choose how to send",
    "restoring": "trace",
    "training": "broadcast and compare weights",
    "steps": "run the first call",
}


def main() -> None:
    """Measure and print."""
    arguments, more = script.parser(__doc__, runs=3).parse_known_args()
    measured = [launch(number, more) for number in range(arguments.runs + 1)][1:]
    totals = [sum(parts.values()) for parts in measured]
    print(f"Enter to first step: median {statistics.median(totals):.1f} s ({min(totals):.1f} to {max(totals):.1f}, {len(totals)} runs)")
    for name, meaning in PARTS.items():
        print(f"  {statistics.median(parts[name] for parts in measured):5.1f} s  {meaning}")


def launch(number: int, more: list[str]) -> dict[str, float]:
    """Seconds of each part of one launch."""
    name = f"launch-time-{number}"
    remove(name, more)
    begun = time.time()
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "train.yml", "-e", f"run={name}", "-e", "quick=true", *more]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    records = chief_records(ROOT / "runs" / name)
    remove(name, more)
    return parts(begun, records)


def parts(begun: float, records: list[dict[str, object]]) -> dict[str, float]:
    """Seconds until each phase first appears, counted from the previous one."""
    first: dict[str, float] = {}
    for record in records:
        name = str(record["phase"]) if record["kind"] == "phase" else str(record["kind"])
        first.setdefault(name, float(str(record["t"])))
    times = [begun, *(first[name] for name in PARTS)]
    return {name: after - before for name, before, after in zip(PARTS, times, times[1:], strict=False)}


def remove(name: str, more: list[str]) -> None:
    """Delete a measured run, here and on the hosts."""
    shutil.rmtree(ROOT / "runs" / name, ignore_errors=True)
    inventory = [word for flag, value in itertools.pairwise(more) if flag == "-i" for word in (flag, value)]
    argv = [str(Path(sys.executable).parent / "ansible"), "workers", *inventory, "-m", "ansible.builtin.file"]
    argv += ["-a", "path={{ worker_root | quote }}/runs/" + name + " state=absent"]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)


if __name__ == "__main__":
    main()
