"""How far off the doctor's predictions are: in each round the doctor, then a training with each number of workers, in random order.

    .venv/bin/python benchmarks/scripts/predictions.py --label "1 Gbit/s" [--rounds 3] [ansible-playbook arguments, with -e
    set=train.steps=N]

What is measured is the median step after the first 64: first calls, and what the control node does after the first step, are over.
With one epoch, none of them is beside a saving. Rows are added to `.lockstep/predictions.csv`, so that several networks stand in one
table; a row of the same label, round and number of workers is replaced.
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.shared import script
from control.campaign.store import Store
from control.campaign.timings import typical_rate
from control.common import project, text
from control.remote.worker_files import chief_records
from control.runs.results.expected_speed import Percent
from trainer.common.errors import LockstepError
from trainer.common.files import read_json

FIRST = 64
"""Steps that are left out of a measured rate."""
FILE = project.PRIVATE / "predictions.csv"


@dataclass(frozen=True)
class Row:
    """One training and its prediction, in images/s."""

    measured: ClassVar[bool] = True
    label: str
    round: int
    workers: int
    predicted: float
    actual: float

    @property
    def trial(self) -> tuple[str, int, int]:
        """Label, round and number of workers: a later row of the same replaces this one."""
        return self.label, self.round, self.workers

    @property
    def error(self) -> float:
        """Share by which the prediction is too high; negative: too low."""
        return self.predicted / self.actual - 1


STORE = Store(Row)


def main() -> None:
    """Measure, record and print."""
    line = script.parser(__doc__, rounds=3)
    line.add_argument("--label", required=True, help="the hosts and their network, for the table")
    arguments, more = line.parse_known_args()
    STORE.read(FILE)  # refuses a file with other columns before anything is measured
    commands = script.Commands(tuple(more))
    for number in range(1, arguments.rounds + 1):
        commands.play("doctor.yml")
        predicted = [one["images_per_s"] for one in read_json(project.PRIVATE / "doctor.json")["prediction"]]
        for workers in _shuffled(len(predicted), number):
            with commands.trained(f"predicted-{workers}", "-e", f"workers={workers}") as run:
                row = Row(arguments.label, number, workers, predicted[workers - 1], _steady_rate(run))
            STORE.put(FILE, row)
            shown = f"predicted {row.predicted:,.0f} images/s, measured {row.actual:,.0f} ({row.error:+.0%})"
            print(f"{row.label}, round {number}, {text.count(workers, 'worker')}: {shown}", flush=True)
    print(table(STORE.read(FILE)))


def _shuffled(most: int, seed: int) -> list[int]:
    """1 to `most` in an order of its own for each seed."""
    return random.Random(seed).sample(range(1, most + 1), most)


def _steady_rate(folder: Path) -> float:
    """images/s of the median step after `FIRST`, by the chief's records; LockstepError if there are none."""
    rate = typical_rate([record for record in chief_records(folder) if record["kind"] == "steps" and record["step"] >= FIRST])
    if rate is None:
        raise LockstepError(f"train.steps: {FIRST} steps are left out, so more are needed; give -e set=train.steps={2 * FIRST}")
    return rate


def table(rows: Sequence[Row]) -> str:
    """Per label and number of workers: medians over the rounds, and the errors."""
    lines = []
    for label, workers in sorted({(row.label, row.workers) for row in rows}):
        group = [row for row in rows if (row.label, row.workers) == (label, workers)]
        errors = [row.error for row in group]
        medians = [statistics.median(values) for values in ([row.predicted for row in group], [row.actual for row in group])]
        percents = [Percent(value) for value in (statistics.median(errors), min(errors), max(errors))]
        lines.append([label, workers, len(group), *(text.Number(value, 0) for value in medians), *percents])
    return text.table(["network", "workers", "rounds", "predicted images/s", "measured", "error", "lowest", "highest"], lines)


if __name__ == "__main__":
    main()
