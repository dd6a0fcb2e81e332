"""From Enter to the first training step and from the last one to the prompt, where the time goes, and images/s; of one version or two.

    .venv/bin/python benchmarks/scripts/launch_time.py [--rounds 3] [--versions OLD NEW] [ansible-playbook arguments]

Starts `ansible-playbook train.yml` once per round, after one warm-up, and prints medians. The parts are the phases in the chief's
record. The first step counts as done when the first call reports (it has `train.steps_per_call` steps). OLD and NEW are checkouts,
each with an inventory of its own at the path that `-i` names (two labs: `lab.yml` with other `lab_prefix` and `lab_subnet`). In each
round every version trains once, in an order that changes from round to round, so a machine that becomes slower meanwhile slows
both; printed are the median of each, and of the rounds' ratios NEW / OLD.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.shared import script
from benchmarks.shared.script import ROOT
from trainer.rundir.phases import Phase

PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
PARTS = {
    Phase.STARTING: "Ansible: plan, publish, claim, files, tmux",
    Phase.CACHING: "Python starts",
    Phase.JOINING: "open the cache",
    Phase.BUILDING: "import TensorFlow, join the cluster",
    Phase.CHOOSING: "build the model",
    Phase.TRACING: "choose how to send",
    Phase.RESTORING: "trace",
    Phase.TRAINING: "broadcast and compare weights",
    "steps": "run the first call",
}
AFTER = {"finishing": "validate and save the last epoch, compare weights", "leaving": "end, collect, show the result"}
WHOLE = {
    "first step": "s, Enter to first step",
    "after": "s, last step to prompt",
    "prompt": "s, Enter to prompt",
    "images/s": "images/s in training steps",
}


def main() -> None:
    """Measure and print."""
    parser = script.parser(__doc__, rounds=3)
    parser.add_argument("--versions", nargs=2, type=lambda text: Path(text).resolve(), metavar=("OLD", "NEW"), default=[ROOT])
    arguments, more = parser.parse_known_args()
    rounds = []
    for number in range(arguments.rounds + 1):
        order = arguments.versions[:: 1 if number % 2 == 0 else -1]
        trained = {version: train(version, f"launch-time-{number}", more) for version in order}
        rounds.append([trained[version] for version in arguments.versions])
    for value, meaning in {**WHOLE, **PARTS, **AFTER}.items():
        report(meaning, [[training.get(value, 0.0) for training in one] for one in rounds[1:]])


def report(meaning: str, rounds: list[list[float]]) -> None:
    """The median of each version with its range, and of the ratios of two."""
    texts = [f"{statistics.median(values):8,.1f} ({min(values):,.1f} to {max(values):,.1f})" for values in zip(*rounds, strict=True)]
    if len(texts) > 1 and all(old for old, _ in rounds):
        texts.append(f"ratio {statistics.median(new / old for old, new in rounds):.3f}")
    print(f"{'  '.join(texts)}  {meaning}")


def train(version: Path, run: str, more: list[str]) -> dict[str, float]:
    """Train once, and delete the run; `WHOLE`, and the seconds of each part."""
    folder = version / "runs" / run
    delete(version, run, more)
    begun = time.time()
    play(version, "train.yml", run, more)
    prompt = time.time()
    ends = [json.loads(path.read_text()) for path in folder.glob("workers/*/exit.json")]
    chief = next(end["host"] for end in ends if end["rank"] == 0)
    # Read as plain JSON: an older version's records need not be what this version's reader accepts.
    records = [json.loads(line) for line in (folder / "workers" / chief / "metrics.jsonl").read_text().splitlines()]
    images_per_s = json.loads((folder / "summary.json").read_text())["images_per_s"]
    delete(version, run, more)
    before, after = parts(begun, records), ending(records, prompt)
    whole = {"first step": sum(before.values()), "after": sum(after.values()), "prompt": prompt - begun, "images/s": images_per_s}
    return {**whole, **before, **after}


def parts(begun: float, records: list[dict[str, object]]) -> dict[str, float]:
    """Seconds until each phase first appears, counted from the previous one."""
    first: dict[str, float] = {}
    for record in records:
        name = str(record["phase"]) if record["kind"] == "phase" else str(record["kind"])
        first.setdefault(name, float(str(record["t"])))
    names = [name for name in PARTS if name in first]
    times = itertools.pairwise([begun, *(first[name] for name in names)])
    return {name: after - before for name, (before, after) in zip(names, times, strict=True)}


def ending(records: list[dict[str, object]], prompt: float) -> dict[str, float]:
    """Seconds from the last step to the chief's end, and from there to the prompt."""
    last = max(float(str(record["t"])) for record in records if record["kind"] == "steps")
    ended = max(float(str(record["t"])) for record in records if record["kind"] == "phase" and record["phase"] == Phase.ENDED)
    return dict(zip(AFTER, (ended - last, prompt - ended), strict=True))


def delete(version: Path, run: str, more: list[str]) -> None:
    """Delete a run, also one that an interrupted measurement left, from the hosts and here; nothing if there is none."""
    if (version / "runs" / run).exists():
        play(version, "playbooks/delete_run.yml", run, inventory(more))


def inventory(more: list[str]) -> list[str]:
    """Ansible's arguments that name an inventory."""
    return [word for flag, value in itertools.pairwise(more) if flag == "-i" for word in (flag, value)]


def play(version: Path, playbook: str, run: str, more: list[str]) -> None:
    """Run a playbook of a version for a run; `run` is empty for a command without one."""
    environment = {**os.environ, "PYTHONPATH": str(version)}
    argv = [PLAYBOOK, playbook, *(["-e", f"run={run}"] if run else []), *more]
    ended = subprocess.run(argv, cwd=version, env=environment, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode != 0:
        sys.exit(f"{version}: {playbook} ended with exit code {ended.returncode}:\n" + "\n".join(ended.stdout.splitlines()[-20:]))


if __name__ == "__main__":
    main()
