"""Synchronous against asynchronous training on the lab: images/s, and seconds to a given validation loss, on even and on uneven nodes.

    .venv/bin/python benchmarks/scripts/parameter_server.py -i inventory/lab --loss 1.3 [--rounds 1] [--cases even,half,slow-link]
        [--ways NAME,NAME] [--cpus 0.3] [--set KEY=VALUE,...] [ansible-playbook arguments: configuration, dataset, -e epochs=N]

In each round every case trains both ways, in an order that changes from round to round. `half`: the last node has half of its CPUs;
`slow-link`: each node sends at 100 Mbit/s. Needs root, and a lab of equal nodes (`lab.yml -e cpus=0.3`). The seconds are those of training
steps, until the first epoch whose validation loss is at most the given one. Rows and pictures: `.lockstep/asynchronous/`.
"""

import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.scripts.launch_time import delete, play
from benchmarks.shared import script
from benchmarks.shared.lab_nodes import Lab, nodes_of_script
from benchmarks.shared.script import ROOT
from control.common import plotting, text
from control.remote.worker_files import chief_records
from control.runs.show.parameter_server_text import calls_by_staleness, staleness
from trainer.rundir.schemas import read_history

FOLDER = ROOT / ".lockstep" / "asynchronous"
WAYS = {"synchronous": "strategy.name=synchronous", "asynchronous": "strategy.name=parameter_server"}
History = Sequence[dict[str, Any]]
Case = Callable[[Lab], "contextlib.AbstractContextManager[None]"]


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


def half(lab: Lab) -> contextlib.AbstractContextManager[None]:
    """The last node has half of its CPUs."""
    return lab.half_the_cpus(max(lab.containers))


@contextlib.contextmanager
def _slow_link(lab: Lab) -> Iterator[None]:
    """Each node sends at 100 Mbit/s."""
    with contextlib.ExitStack() as stack:
        for host in lab.containers:
            stack.enter_context(lab.link(host, "100mbit"))
        yield


CASES: dict[str, Case] = {"even": lambda _: contextlib.nullcontext(), "half": half, "slow-link": _slow_link}


def main() -> None:
    """Measure, print and draw."""
    line = script.parser(__doc__, rounds=1)
    line.add_argument("--loss", type=float, required=True, help="the validation loss that counts as reached")
    line.add_argument("--cases", default=",".join(CASES))
    line.add_argument("--ways", default=",".join(WAYS))
    line.add_argument("--cpus", type=float, default=0.3, help="of each node, as lab.yml made them")
    line.add_argument("--set", default="", help="further settings of the configuration, as -e set= takes them")
    given, more = line.parse_known_args()
    cases, ways = _listed("cases", given.cases, CASES), _listed("ways", given.ways, WAYS)
    lab = nodes_of_script(given.cpus)
    rows: list[Row] = []
    stale: dict[str, Counter[int]] = {case: Counter() for case in cases}
    for number in range(given.rounds):
        for case in cases:
            curves: dict[str, History] = {}
            for way in ways[:: 1 if number % 2 == 0 else -1]:
                with CASES[case](lab):
                    folder = train(f"{case}-{way}", ",".join(filter(None, [WAYS[way], given.set])), more)
                curves[way] = read_history(folder / "history.csv")
                calls = calls_by_staleness(chief_records(folder))
                stale[case] += calls
                rows.append(row(case, way, curves[way], given.loss, calls))
                delete(ROOT, folder.name, more)
                print(f"round {number + 1}, {case}, {way}: {rows[-1].per_s} per second", flush=True)
            draw(curves, case, FOLDER / f"{case}-{number}.png")
    if any(stale.values()):
        _draw_staleness(stale, FOLDER / "staleness.png")
    script.record(FOLDER / "rows.csv", rows)
    header = ["case", "", "per second", f"s to loss {given.loss:g}", "epochs", "lowest loss", "staleness"]
    print(text.table(header, rows))


def _listed(option: str, given: str, known: Iterable[str]) -> list[str]:
    names = given.split(",")
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"--{option}={given}: {', '.join(unknown)} is unknown; there are {', '.join(known)}")
    return names


def train(run: str, settings: str, more: list[str]) -> Path:
    """Train once; the run's folder."""
    delete(ROOT, run, more)
    play(ROOT, "train.yml", run, [*more, "-e", f"set={settings}"])
    return ROOT / "runs" / run


def row(case: str, way: str, history: History, loss: float, calls: Mapping[int, int]) -> Row:
    """Speed of a training, and when it reached the loss; `calls` by staleness."""
    seconds = elapsed(history)
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


def elapsed(history: History) -> list[float]:
    """Seconds of training steps up to the end of each epoch."""
    return list(itertools.accumulate(one["seconds"] for one in history))


def draw(curves: Mapping[str, History], case: str, path: Path) -> None:
    """Validation loss over the seconds of training steps."""
    with plotting.picture(path) as figure:
        axes = plotting.one_panel(figure, "Synchronous and asynchronous training", f"five nodes, {case}", "validation loss")
        for number, (way, history) in enumerate(curves.items()):
            axes.plot(elapsed(history), [one["val_loss"] for one in history], label=way, **plotting.line_style(number))
        axes.set_xlabel("seconds of training steps")
        axes.legend()


def _draw_staleness(calls: Mapping[str, Mapping[int, int]], path: Path) -> None:
    """How many calls had which staleness, by case."""
    with plotting.picture(path) as figure:
        axes = plotting.one_panel(figure, "How stale the gradients are", "asynchronous training", "share of all calls")
        width = 0.8 / len(calls)
        for number, (case, counted) in enumerate(calls.items()):
            values = sorted(counted)
            heights = [counted[value] / max(1, sum(counted.values())) for value in values]
            axes.bar([value + (number - (len(calls) - 1) / 2) * width for value in values], heights, width, label=case)
        axes.set_xlabel("steps of others between reading the weights and updating them")
        axes.legend()


if __name__ == "__main__":
    main()
