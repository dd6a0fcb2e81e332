"""Where the time of a launch went, from Enter to the result: the command's stages on this machine, then the chief's phases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from control.remote.worker_files import chief_records
from control.runs.results.run_folder import RunFolder
from trainer.rundir.phases import Phase

HERE = "this machine"
FIRST_CALL = "run the first call"
REST = "train, validate, save"
LEAST_S = 0.05
"""Shortest stage that is named; others had nothing to do."""
WORDS = {
    Phase.STARTING: "start Python",
    Phase.CACHING: "open the dataset's cache",
    Phase.JOINING: "import TensorFlow, join",
    Phase.CONNECTING: "connect to the others",
    Phase.BUILDING: "build the model",
    Phase.CHOOSING: "choose how to send gradients",
    Phase.MEASURING: "measure the workers",
    Phase.TRACING: "trace",
    Phase.RESTORING: "restore, compare weights",
}


@dataclass(frozen=True)
class Span:
    """A stretch of time; seconds from Enter."""

    place: str
    what: str
    begins: float
    ends: float


def spans(run: RunFolder) -> list[Span]:
    """The spans of a run's last launch, by place, in order; none if the run has not ended, trained no step, or was not watched."""
    launch = run.summary.launch or {}
    records = chief_records(run.path) if "seconds_to_training" in launch else []
    marks = {record["phase"]: record["t"] for record in reversed(records) if record["kind"] == "phase"}
    if Phase.TRAINING not in marks:
        return []
    chief = _of_chief(run.record.hosts[0].name, marks, [record["t"] for record in records if record["kind"] == "steps"], launch)
    return [*_of_command(launch, chief[0].begins, chief[-1].ends), *chief]


def _of_command(launch: Mapping[str, Any], first: float, last: float) -> list[Span]:
    """The command's stages: until the last one begins, which watches the worker from its `first` to its `last` record."""
    known = [(str(name), float(at)) for name, at in launch.get("stages", ())]
    starts = [("start Ansible", 0.0), *known] if known else [("plan, look at the hosts, publish, start", 0.0)]
    stages = [Span(HERE, name, at, after) for (name, at), (_, after) in pairwise([*starts, ("", max(first, starts[-1][1]))])]
    stages = [span for span in stages if span.ends - span.begins >= LEAST_S]
    return [*stages, Span(HERE, "collect, show the result", last, launch["seconds_from_enter"])]


def _of_chief(chief: str, marks: Mapping[str, float], steps: Sequence[float], launch: Mapping[str, Any]) -> list[Span]:
    """The phases of the chief by this machine's clock.

    Args:
        chief: its host.
        marks: when each phase first began, by the chief's clock; nobody checked these times.
        steps: when calls of steps had ended, likewise.
        launch: `Verdicts.launch_times`.
    """
    ahead, end = marks[Phase.TRAINING] - launch["seconds_to_training"], launch["seconds_from_enter"] - launch["seconds_after_training"]

    def here(t: float) -> float:
        return round(min(max(t - ahead, 0.0), end), 3)

    began = here(marks[Phase.TRAINING])
    starts = sorted((min(here(t), began), WORDS[Phase(phase)]) for phase, t in marks.items() if phase in WORDS)
    first_call = max(here(min(steps)), began) if steps else end
    times = [*starts, (began, FIRST_CALL), (first_call, REST), (end, "")]
    return [Span(chief, what, begins, ends) for (begins, what), (ends, _) in pairwise(times)]
