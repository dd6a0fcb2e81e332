"""Synchronous against asynchronous training on the lab: images/s, and seconds to a given validation loss, on even and on uneven nodes.

    .venv/bin/python benchmarks/scripts/parameter_server.py -i inventory/lab --loss 1.3 [--rounds 1] [--cases even,half,slow-link]
        [--ways NAME,NAME] [--cpus 0.3] [--set KEY=VALUE,...] [ansible-playbook arguments: configuration, dataset, -e epochs=N]

In each round every case trains both ways, in an order that changes from round to round. `half`: the last node has half of its CPUs;
`slow-link`: each node sends at 100 Mbit/s. Needs root, and a lab of equal nodes (`lab.yml -e cpus=0.3`). The seconds are those of training
steps, until the first epoch whose validation loss is at most the given one. Rows: `.lockstep/asynchronous.csv`.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.shared import lab_nodes, script
from benchmarks.shared.lab_nodes import Lab
from control.common import project, text
from control.remote.worker_files import chief_records
from control.runs.show.parameter_server_text import calls_by_staleness, staleness
from trainer.common.files import write_rows
from trainer.rundir.schemas import read_history

FILE = project.PRIVATE / "asynchronous.csv"
WAYS = {"synchronous": "strategy.name=synchronous", "asynchronous": "strategy.name=parameter_server"}


@contextlib.contextmanager
def _slow_link(lab: Lab) -> Iterator[None]:
    """Each node sends at 100 Mbit/s."""
    with contextlib.ExitStack() as stack:
        for host in lab.containers:
            stack.enter_context(lab.link(host, "100mbit"))
        yield


CASES: dict[str, Callable[[Lab], "contextlib.AbstractContextManager[None]"]] = {
    "even": lambda _: contextlib.nullcontext(),
    "half": lambda lab: lab.half_the_cpus(max(lab.containers)),
    "slow-link": _slow_link,
}


class Row(NamedTuple):
    """One training."""

    case: str
    way: str
    per_s: text.Number
    """Images or examples per second of training steps."""
    seconds: text.Number | str
    """Seconds of training steps to the loss; `-` if the loss was not reached."""
    epochs: int | str
    loss: text.Number
    """The lowest validation loss."""
    staleness: str


def main() -> None:
    """Measure and print."""
    line = script.parser(__doc__, rounds=1)
    line.add_argument("--loss", type=float, required=True, help="the validation loss that counts as reached")
    line.add_argument("--cases", type=lambda given: script.names(given, CASES), default=list(CASES))
    line.add_argument("--ways", type=lambda given: script.names(given, WAYS), default=list(WAYS))
    line.add_argument("--cpus", type=float, default=0.3, help="of each node, as lab.yml made them")
    line.add_argument("--set", default="", help="further settings of the configuration, as -e set= takes them")
    given, more = line.parse_known_args()
    lab, commands, rows = lab_nodes.nodes_of_script(given.cpus), script.Commands(tuple(more)), list[Row]()
    for number, case in itertools.product(range(given.rounds), given.cases):
        for way in script.in_turn(given.ways, number):
            settings = ",".join(filter(None, [WAYS[way], given.set]))
            with CASES[case](lab), commands.trained(f"{case}-{way}", "-e", f"set={settings}") as run:
                rows.append(row(case, way, read_history(run / "history.csv"), given.loss, calls_by_staleness(chief_records(run))))
            write_rows(FILE, Row._fields, (one._asdict() for one in rows))
            print(f"round {number + 1}, {case}, {way}: {rows[-1].per_s} per second", flush=True)
    header = ["case", "", "per second", f"s to loss {given.loss:g}", "epochs", "lowest loss", "staleness"]
    print(text.table(header, rows))


def row(case: str, way: str, history: Sequence[dict[str, Any]], loss: float, calls: Mapping[int, int]) -> Row:
    """Speed of a training, and when it reached the loss; `calls` by staleness."""
    seconds = list(itertools.accumulate(one["seconds"] for one in history))
    reached = next((number for number, one in enumerate(history) if one["val_loss"] <= loss), None)
    return Row(
        case,
        way,
        text.Number(sum(one["seconds"] * one["images_per_s"] for one in history) / seconds[-1], 0),
        "-" if reached is None else text.Number(seconds[reached], 1),
        "-" if reached is None else reached + 1,
        text.Number(min(one["val_loss"] for one in history), 4),
        staleness(calls) if calls else "",
    )


if __name__ == "__main__":
    main()
