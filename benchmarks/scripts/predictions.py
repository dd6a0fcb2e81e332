"""How far off the doctor's predictions are: in each round the doctor, then a training with each number of workers, in random order.

    .venv/bin/python benchmarks/scripts/predictions.py --label "1 Gbit/s" [--rounds 3] [ansible-playbook arguments, with -e
    set=train.steps=N]

What is measured is the median step after the first 64: first calls, and what the control node does after the first step, are over.
With one epoch, none of them is beside a saving. Rows are added to `.lockstep/predictions.csv`, so that several networks stand in one
table; the same label replaces its own.
"""

import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.scripts.launch_time import delete, play
from benchmarks.shared import script
from benchmarks.shared.script import ROOT
from control.campaign.timings import typical_rate
from control.common import text
from control.remote.worker_files import chief_records
from control.runs.results.expected_speed import Percent
from trainer.common.errors import LockstepError

FIRST = 64
"""Steps that are left out of a measured rate."""
FILE = ROOT / ".lockstep" / "predictions.csv"


class Row(NamedTuple):
    """One training and its prediction, in images/s."""

    label: str
    round: int
    workers: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Share by which the prediction is too high; negative: too low."""
        return self.predicted / self.measured - 1


def main() -> None:
    """Measure, record and print."""
    line = script.parser(__doc__, rounds=3)
    line.add_argument("--label", required=True, help="the hosts and their network, for the table")
    arguments, more = line.parse_known_args()
    rows = [row for row in script.recorded(FILE, Row) if row.label != arguments.label]
    for number in range(1, arguments.rounds + 1):
        for row in measured(arguments.label, number, more):
            rows.append(row)
            script.record(FILE, rows)
            shown = f"predicted {row.predicted:,.0f} images/s, measured {row.measured:,.0f} ({row.error:+.0%})"
            print(f"{row.label}, round {row.round}, {text.count(row.workers, 'worker')}: {shown}", flush=True)
    print(table(rows))


def measured(label: str, number: int, more: list[str]) -> list[Row]:
    """The rows of one round."""
    play(ROOT, "doctor.yml", "", more)
    rates = [one["images_per_s"] for one in json.loads((ROOT / ".lockstep" / "doctor.json").read_text(encoding="utf-8"))["prediction"]]
    return [Row(label, number, workers, rates[workers - 1], trained(workers, more)) for workers in shuffled(len(rates), number)]


def shuffled(most: int, seed: int) -> list[int]:
    """1 to `most` in an order of its own for each seed."""
    return random.Random(seed).sample(range(1, most + 1), most)


def trained(workers: int, more: list[str]) -> float:
    """images/s of a training's steps after `FIRST`; the run is then deleted."""
    run = f"predicted-{workers}"
    delete(ROOT, run, more)
    play(ROOT, "train.yml", run, [*more, "-e", f"workers={workers}"])
    rate = _steady_rate(ROOT / "runs" / run)
    delete(ROOT, run, more)
    return rate


def _steady_rate(folder: Path) -> float:
    """images/s of the median step after `FIRST`, by the chief's records; LockstepError if there are none."""
    rate = typical_rate([record for record in chief_records(folder) if record["kind"] == "steps" and record["step"] >= FIRST])
    if rate is None:
        raise LockstepError(f"train.steps: {FIRST} steps are left out, so more are needed; give -e set=train.steps={2 * FIRST}")
    return rate


def table(rows: Sequence[Row]) -> str:
    """Per label and number of workers: medians over the rounds, and the errors."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.workers):
        groups.setdefault((row.label, row.workers), []).append(row)
    lines = []
    for (label, workers), group in sorted(groups.items()):
        errors = [row.error for row in group]
        medians = [statistics.median(values) for values in ([row.predicted for row in group], [row.measured for row in group])]
        percents = [Percent(value) for value in (statistics.median(errors), min(errors), max(errors))]
        lines.append([label, workers, len(group), *(text.Number(value, 0) for value in medians), *percents])
    return text.table(["network", "workers", "rounds", "predicted images/s", "measured", "error", "lowest", "highest"], lines)


if __name__ == "__main__":
    main()
