"""Where the time of a launch went, from Enter to the result: the command's stages on this machine, then the chief's phases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from control.remote.worker_files import chief_records
from control.runs.results.run_folder import RunFolder
from trainer.common.errors import LockstepError
from trainer.rundir.phases import TOGETHER, Phase

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
    """The spans of a run's last launch, by place, in order.

    Raises:
        LockstepError: the run's end is not recorded here, or no step was trained.
    """
    launch = run.summary.launch or {}
    if "seconds_to_training" not in launch:
        raise LockstepError(
            f"run={run.name}: its timeline is not known: it has not ended, trained no step, or its end was not watched. "
            f"Fix: ansible-playbook status.yml -e run={run.name}"
        )
    chief = _of_chief(chief_records(run.path), launch["seconds_to_training"])
    first, last = chief[0].begins, chief[-1].ends
    name = run.record.hosts[0].name
    return [*_of_command(launch, first, last), *(Span(name, span.what, span.begins, span.ends) for span in chief)]


def _of_command(launch: Mapping[str, Any], first: float, last: float) -> list[Span]:
    """The command's stages: until the last one begins, which watches the worker from its `first` to its `last` record."""
    end, known = launch["seconds_from_enter"], [(str(name), float(at)) for name, at in launch.get("stages", ())]
    starts = [("start Ansible", 0.0), *known] if known else [("plan, look at the hosts, publish, start", 0.0)]
    stages = [Span(HERE, name, at, after) for (name, at), (_, after) in pairwise([*starts, ("", max(first, starts[-1][1]))])]
    return [*(span for span in stages if span.ends - span.begins >= LEAST_S), Span(HERE, "collect, show the result", last, end)]


def _of_chief(records: Sequence[dict[str, Any]], to_training: float) -> list[Span]:
    """The phases of the last process of the chief, by this machine's clock, on which the first step began at `to_training`."""
    marks = [(record["t"], record["phase"]) for record in records if record["kind"] == "phase"]
    steps = [record["t"] for record in records if record["kind"] == "steps"]
    began = next(t for t, phase in marks if phase == Phase.TRAINING)
    # Only the first process's start belongs to the launch.
    before = [(t, phase) for t, phase in marks if t <= began]
    ends = [t for t, phase in marks if t > began and phase == Phase.ENDED]
    last, first_call = max([began, *ends, *steps]), min([*steps, *ends[-1:]], default=began)
    times = [(t, WORDS.get(phase, phase)) for t, phase in before if phase not in TOGETHER]
    # A phase with progress is recorded more than once.
    times = [one for number, one in enumerate(times) if number == 0 or one[1] != times[number - 1][1]]
    times += [(began, FIRST_CALL), (first_call, REST), (last, "")]
    return [
        Span("", what, round(begins - began + to_training, 3), round(ends - began + to_training, 3))
        for (begins, what), (ends, _) in pairwise(times)
    ]
