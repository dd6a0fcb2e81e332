"""Time that runs spent on other things than training, in percent of the training time.

    .venv/bin/python benchmarks/scripts/overheads.py RUN [RUN ...]

Reads the chief's record of its phases (`runs/RUN/workers/<chief>/metrics.jsonl`). All workers change phases together, so
the chief's times hold for every worker. The time from Enter to the first record is the control node's: see
launch_time.py.
"""

import statistics
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from benchmarks.shared import script
from benchmarks.shared.script import ROOT
from control.common import text
from control.remote.worker_files import chief_records
from control.runs.results.run_names import latest_run
from trainer.common.errors import LockstepError
from trainer.rundir.phases import Phase

ROWS = {
    Phase.STARTING: "start: TensorFlow, cluster, model, tracing",
    Phase.VALIDATING: "validation",
    Phase.SAVING: "saving state, weights, curves",
}


def main() -> None:
    """Read and print."""
    parser = script.parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    try:
        for name in parser.parse_args().runs:
            print(table(name, chief_records(latest_run(ROOT / "runs", name))))
    except LockstepError as error:
        sys.exit(str(error))


def stays(phases: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Durations of all phases in seconds, by kind.

    Args:
        phases: records of kind `phase`, oldest first; the last one, `ended`, ends the previous one. What follows a restart, up to
            training, is a start, too.
    """
    durations: dict[str, list[float]] = {Phase.TRAINING: [], **{kind: [] for kind in ROWS}}
    begun = False
    for one, following in pairwise(phases):
        begun = begun or one["phase"] == Phase.TRAINING
        # From an end to another start, or to the supervisor's own end, nothing works.
        if one["phase"] != Phase.ENDED:
            known = begun and one["phase"] in durations
            durations[one["phase"] if known else Phase.STARTING].append(following["t"] - one["t"])
    return durations


def table(name: str, lines: Iterable[Mapping[str, Any]]) -> str:
    """A table of one run."""
    durations = stays([line for line in lines if line["kind"] == "phase"])
    training = sum(durations[Phase.TRAINING])
    durations[Phase.STARTING] = [sum(durations[Phase.STARTING])]
    rows = []
    for kind, meaning in ROWS.items():
        seconds = durations[kind]
        share = f"{sum(seconds) / training:.2%}" if training else "-"
        rows.append([meaning, text.Number(sum(seconds), 2), share, len(seconds), text.Number(statistics.median(seconds or [0.0]), 3)])
    header = ["", "seconds", "of training", "times", "median s"]
    return f"{name}: {training:,.1f} s of training\n{text.table(header, rows)}\n"


if __name__ == "__main__":
    main()
