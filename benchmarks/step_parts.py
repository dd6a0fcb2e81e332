"""Where a step's time goes, from results of benchmarks/peers.yml with the systems lockstep-parts, in-step and ideal.

    ansible-playbook -i inventory/lab benchmarks/peers.yml -e peers=NAME -e workers=5 -e systems=lockstep-parts,in-step,ideal
    .venv/bin/python benchmarks/step_parts.py NAME

Prints CPU time and duration of every part of a step for each link and number of workers: medians over rounds and workers.
Parts that run at the same time on two threads share the CPU, so their durations overlap.
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import script
from benchmarks.analysis.benchmark import MEASUREMENTS, RESULTS
from control import text
from trainer.config import nearest
from trainer.errors import ConfigError, LockstepError

WATCHED = "lockstep-parts"
BOUNDS = {"in-step": "with nothing sent but 16 bytes, twice", "ideal": "with nothing sent, and nobody waited for"}
REST = "TensorFlow: forward, backward, small layers' updates"
Results = dict[str, list[Mapping[str, Any]]]
"""What every worker of every round wrote, by system."""


def main() -> None:
    """Read and print."""
    parser = script.parser(__doc__)
    parser.add_argument("name", metavar="NAME")
    try:
        for heading, results in measured(parser.parse_args().name).items():
            print(table(heading, results))
    except LockstepError as error:
        sys.exit(str(error))


def measured(name: str) -> dict[str, Results]:
    """What was measured, by link and number of workers; those without measured parts are left out."""
    path = RESULTS / name / MEASUREMENTS
    if not path.is_file():
        names = sorted(one.parent.name for one in RESULTS.glob(f"*/{MEASUREMENTS}"))
        raise ConfigError(f"{name}: no results of benchmarks/peers.yml{nearest(name, names)}; there are: {text.listed(names) or 'none'}")
    results: dict[str, Results] = defaultdict(lambda: defaultdict(list))
    for line in path.read_text(encoding="utf-8").splitlines():
        cell = json.loads(line)
        _, link, workers, system = cell["cell"].split("-", 3)
        results[f"{workers} workers, link {link}"][system] += [one["result"] for one in cell["workers"] if one.get("result")]
    headings = {heading: systems for heading, systems in results.items() if systems[WATCHED]}
    if not headings:
        raise ConfigError(f"{name}: {WATCHED} was not measured; benchmarks/peers.yml -e peers={name} -e systems={WATCHED},in-step,ideal")
    return headings


def table(heading: str, results: Results) -> str:
    """The table for one link and number of workers."""
    watched = results[WATCHED]
    total = _medians(watched)
    parts = {name: [statistics.median(_a_step(one, name, kind) for one in watched) for kind in (0, 1)] for name in watched[0]["parts"][0]}
    rest = total[0] - sum(processor for processor, _ in parts.values())
    rows = [["a step", *map(_ms, total)], [f"  {REST}", _ms(rest), "-"], *([f"  {name}", *map(_ms, both)] for name, both in parts.items())]
    for system, meaning in BOUNDS.items():
        if results[system]:
            rows.append([meaning, *map(_ms, _medians(results[system]))])
    return f"{heading}, milliseconds per step\n{text.table(['', 'processor', 'duration'], rows)}\n"


def _a_step(one: Mapping[str, Any], name: str, kind: int) -> float:
    return statistics.fmean(call[name][kind] for call in one["parts"]) / int(one["settings"]["steps_per_call"])


def _medians(workers: Sequence[Mapping[str, Any]]) -> list[float]:
    return [statistics.median(one[key] for one in workers) for key in ("cpu_seconds_step", "seconds_step")]


def _ms(seconds: float) -> Any:
    return text.Number(seconds * 1000, 1)


if __name__ == "__main__":
    main()
