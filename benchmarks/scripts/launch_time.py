"""From Enter to the first training step and from the last one to the prompt, where the time goes, and images/s; of one version or two.

    .venv/bin/python benchmarks/scripts/launch_time.py [--rounds 3] [--versions OLD NEW] [ansible-playbook arguments]

Starts `ansible-playbook train.yml` once per round, after one warm-up, and prints medians. The parts are the phases in the chief's
record. The first step counts as done when the first call reports (it has `train.steps_per_call` steps). OLD and NEW are checkouts,
each with an inventory of its own at the path that `-i` names (two labs: `lab.yml` with other `lab_prefix` and `lab_subnet`). In each
round every version trains once, in an order that changes from round to round; printed are the median of each, and of the rounds'
ratios NEW / OLD.
"""

import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.shared import script
from trainer.rundir.phases import Phase

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
ROWS = {
    "first step": "s, Enter to first step",
    "after": "s, last step to prompt",
    "prompt": "s, Enter to prompt",
    "images/s": "images/s in training steps",
    **PARTS,
    "finishing": "validate and save the last epoch, compare weights",
    "leaving": "end, collect, show the result",
}


def main() -> None:
    """Measure and print."""
    arguments, more = script.parser(__doc__, versions=True, rounds=3).parse_known_args()
    versions = [script.Commands(tuple(more), version) for version in arguments.versions]
    rounds = []
    for number in range(arguments.rounds + 1):
        trained = {version: _train(version, f"launch-time-{number}") for version in script.in_turn(versions, number)}
        rounds.append([trained[version] for version in versions])
    for value, meaning in ROWS.items():
        script.report(meaning, [[training.get(value, 0.0) for training in one] for one in rounds[1:]])


def _train(version: script.Commands, run: str) -> dict[str, float]:
    """Train once; values of `ROWS`."""
    version.delete(run)
    begun = time.time()
    with version.trained(run) as folder:
        prompt = time.time()
        ends = [json.loads(path.read_text()) for path in folder.glob("workers/*/exit.json")]
        chief = next(end["host"] for end in ends if end["rank"] == 0)
        # Read as plain JSON: an older version's records need not be what this version's reader accepts.
        records = [json.loads(line) for line in (folder / "workers" / chief / "metrics.jsonl").read_text().splitlines()]
        images_per_s = json.loads((folder / "summary.json").read_text())["images_per_s"]
    return {**seconds(begun, records, prompt), "images/s": images_per_s}


def seconds(begun: float, records: Sequence[dict[str, Any]], prompt: float) -> dict[str, float]:
    """Seconds of each part of a launch that the chief's records show, and of the wholes.

    Args:
        begun: when the command was started, seconds since 1970.
        records: the chief's, oldest first. A part lasts from the first record of the part before until its own first record.
        prompt: when the command had ended.
    """
    named = [(str(record["phase"] if record["kind"] == "phase" else record["kind"]), record["t"]) for record in records]
    first = dict(reversed(named))
    names = [name for name in PARTS if name in first]
    times = itertools.pairwise([begun, *(first[name] for name in names)])
    parts = {name: after - before for name, (before, after) in zip(names, times, strict=True)}
    last, ended = (max(t for name, t in named if name == kind) for kind in ("steps", Phase.ENDED))
    wholes = {"first step": sum(parts.values()), "after": prompt - last, "prompt": prompt - begun}
    return {**wholes, **parts, "finishing": ended - last, "leaving": prompt - ended}


if __name__ == "__main__":
    main()
