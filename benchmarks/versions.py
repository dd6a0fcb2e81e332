"""Two versions of this project on the same hosts, in alternating rounds: Enter to first step, and images/s.

    .venv/bin/python benchmarks/versions.py OLD NEW [--rounds 5] [ansible-playbook arguments]

OLD and NEW are checkouts, each with an inventory of its own at the path that `-i` names (two labs: `lab.yml` with other
`lab_prefix` and `lab_subnet`). In each round every version trains once, in an order that changes from round to round, so a
machine that becomes slower meanwhile slows both. Printed are the rounds, and the median of the rounds' ratios NEW / OLD.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")


@dataclass(frozen=True)
class Training:
    """What one training took."""

    first_step_s: float
    """From Enter until the chief's first call of steps has ended."""
    total_s: float
    """From Enter to the prompt."""
    images_per_s: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs=2, type=lambda text: Path(text).resolve(), metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=5)
    arguments, more = parser.parse_known_args()
    for version in arguments.versions:
        train(version, "versions-warm-up", more)
    rounds = []
    for number in range(arguments.rounds):
        trainings = {}
        for version in arguments.versions[:: 1 if number % 2 == 0 else -1]:
            trainings[version] = train(version, f"versions-{number}", more)
        rounds.append([trainings[version] for version in arguments.versions])
        print(f"round {number + 1}: " + "; ".join(row(training) for training in rounds[-1]), flush=True)
    for value in ("first_step_s", "total_s", "images_per_s"):
        old, new = ([getattr(training, value) for training in trainings] for trainings in zip(*rounds, strict=True))
        ratio = statistics.median(after / before for before, after in zip(old, new, strict=True))
        print(f"{value}: {statistics.median(old):.1f} -> {statistics.median(new):.1f} (medians), ratio {ratio:.3f} (median of the rounds)")


def train(version: Path, run: str, more: list[str]) -> Training:
    """Train once, and delete the run."""
    environment = {**os.environ, "PYTHONPATH": str(version)}
    if (version / "runs" / run).exists():
        delete(version, run, more)
    begun = time.time()
    subprocess.run([PLAYBOOK, "train.yml", "-e", f"run={run}", *more], cwd=version, env=environment, check=True, capture_output=True)
    total = time.time() - begun
    folder = version / "runs" / run
    ends = [json.loads(path.read_text()) for path in folder.glob("workers/*/exit.json")]
    chief = next(end["host"] for end in ends if end["rank"] == 0)
    records = map(json.loads, (folder / "workers" / chief / "metrics.jsonl").read_text().splitlines())
    first = next(record["t"] for record in records if record["kind"] == "steps")
    images_per_s = json.loads((folder / "summary.json").read_text())["images_per_s"]
    delete(version, run, more)
    return Training(first - begun, total, images_per_s)


def delete(version: Path, run: str, more: list[str]) -> None:
    """Delete a run, also one that an interrupted measurement left, from the hosts and here."""
    inventory = [word for flag, value in itertools.pairwise(more) if flag == "-i" for word in (flag, value)]
    argv = [PLAYBOOK, "playbooks/delete_run.yml", *inventory, "-e", f"run={run}"]
    subprocess.run(argv, cwd=version, env={**os.environ, "PYTHONPATH": str(version)}, check=True, capture_output=True)


def row(training: Training) -> str:
    """One training in a line."""
    return f"first step {training.first_step_s:.1f} s, prompt {training.total_s:.1f} s, {training.images_per_s:,.0f} images/s"


if __name__ == "__main__":
    main()
