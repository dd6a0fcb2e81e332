"""The outcome of a run, from what was seen of each worker. Pure functions."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.common.errors import CRASHES, DIVERGED, DONE, FAILED, PREEMPTED, RESTART, signal_of
from trainer.rundir.phases import Phase
from trainer.supervision.failure import Failure, kind_of
from trainer.supervision.restart_policy import may_go_on

TIMED = (Phase.TRAINING, Phase.ENDED)
"""Phases of the chief whose start times a result shows."""
SCRIPT_PHASE = "running"
"""A script has no phases."""
GONE = "its session ended without an exit code (killed, or the host was restarted)"
ENDED_WELL, LOST = ("done", "preempted", "running"), "lost"
AWAY = ("gone", "silent", "unreachable")
"""States of a worker that may be lost: nobody knows how it ended."""
FAILURE = ("host", "rank", "state", "exit_code", "message", "phase", "step", "environment", "again")


@dataclass(frozen=True)
class Verdict:
    """Observations of one worker, up to its end."""

    host: str
    rank: int | str
    """`-` for a job of Slurm."""
    state: str
    """`running`, `done`, `preempted`, `failed`, `gone`, `silent`, `unreachable`, `unclear`, `ended` (because another worker failed), or
    `lost` (the others went on without it)."""
    phase: str | None = None
    step: int | None = None
    at: float = 0.0
    """When it reached its state, in seconds since 1970; for a lost worker, when it was last heard."""
    exit_code: int | None = None
    message: str | None = None
    last_lines: list[str] | None = None
    """The end of its worker.log."""
    ended_by_us: bool = False
    phases_began: dict[str, float] | None = None
    """When the phases in `TIMED` began; None if it was not watched."""
    environment: dict[str, str] | None = None
    again: bool | None = None
    """True if the previous launch ended the same way; None if not checked."""

    @property
    def failure(self) -> Failure:
        """The end of its worker, as of one that failed."""
        phase = self.phase if self.phase and self.phase not in ("-", SCRIPT_PHASE) else ""
        kind = kind_of(self.exit_code, follows=self.ended_by_us)
        return Failure(self.host, self.rank, kind, self.step or 0, phase, self.at, self.exit_code)

    def to_dict(self) -> dict[str, Any]:
        """For Ansible, and `Verdict(**...)`; fields without a value are left out."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


def root_cause(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict with the first failure; None if no worker failed."""
    failed = [verdict for verdict in verdicts if verdict.state not in (*ENDED_WELL, LOST)]
    return min(failed, key=lambda verdict: verdict.failure.order, default=None)


def without_lost(verdicts: Sequence[Verdict], workers: int) -> list[Verdict]:
    """The verdicts of an elastic run: `lost` is who is away, or waited in vain for the others, if enough others went on without it.

    Of the spares, whose ranks follow those of the `workers`, only those that trained count.
    """
    verdicts = [verdict for verdict in verdicts if int(verdict.rank) < workers or verdict.step]
    well = [int(verdict.rank) for verdict in verdicts if verdict.state in ENDED_WELL]
    if not may_go_on(well, workers, 1):
        return list(verdicts)
    return [
        dataclasses.replace(verdict, state=LOST) if verdict.state in AWAY or verdict.exit_code == RESTART else verdict
        for verdict in verdicts
    ]


def without(verdicts: Sequence[Verdict], dispensable: Collection[str]) -> list[Verdict]:
    """The verdicts; `lost` are those of hosts that a run can do without, if they have not ended well."""
    return [
        dataclasses.replace(verdict, state=LOST) if verdict.host in dispensable and verdict.state not in ENDED_WELL else verdict
        for verdict in verdicts
    ]


def lost(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """`lost` in summary.json: hosts, and when they were last heard."""
    return [
        {"host": verdict.host, "rank": verdict.rank, "step": verdict.step, "at": round(verdict.at, 3)}
        for verdict in verdicts
        if verdict.state == LOST
    ]


def state(verdicts: Sequence[Verdict], chief_state: str | None, cancelled: bool, script: bool = False) -> str:
    """The run's state for summary.json.

    A worker that does not survive being asked to end (`cancelled`) has not failed, unless it reports an error of its own: its state
    could not be saved. A `script` that is asked to end may end with any exit code.
    """
    cause = root_cause(verdicts)
    if cause is not None:
        return "CANCELLED" if cancelled and (script or cause.exit_code not in (FAILED, DIVERGED)) else "FAILED"
    if any(verdict.state == "running" for verdict in verdicts):
        return "RUNNING"
    if any(verdict.state == "preempted" for verdict in verdicts):
        return "CANCELLED" if cancelled or chief_state == "CANCELLED" else "PREEMPTED"
    return "SUCCEEDED"


def failure(cause: Verdict) -> dict[str, Any]:
    """`failure` in summary.json."""
    return {name: getattr(cause, name) for name in FAILURE}


def launch_times(entered: float | None, verdicts: Sequence[Verdict], now: float | None) -> dict[str, Any] | None:
    """Durations of a launch by the clock of the machine where Enter was pressed, for summary.json; None if unknown.

    Args:
        entered: when Enter was pressed, in seconds since 1970.
        verdicts: of all workers; the chief's has `phases_began`.
        now: when the command that launched the run shows the result. None for a command that came back to it,
            perhaps much later: then the last worker's end counts.

    Training lasts from the first step to the end of the last epoch, including validation and saving.
    """
    began = next((verdict.phases_began for verdict in verdicts if verdict.rank == 0), None)
    if entered is None or began is None:
        return None
    end = now if now is not None else max(verdict.at for verdict in verdicts)
    times: dict[str, Any] = {"until": "result" if now is not None else "last worker's end", "seconds_from_enter": round(end - entered, 3)}
    if (first := began.get(Phase.TRAINING)) is not None:
        last = began.get(Phase.ENDED, max(verdict.at for verdict in verdicts))
        times |= {"seconds_to_training": first - entered, "seconds_training": last - first, "seconds_after_training": end - last}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in times.items()}


def of_exit_code(code: int, script: bool = False) -> str:
    """State of a worker that ended; only 0 of a user's script has a meaning."""
    if script:
        return "done" if code == DONE else "failed"
    return {DONE: "done", PREEMPTED: "preempted"}.get(code, "failed")


def crashed_again(cause: Verdict, before: dict[str, Any] | None) -> bool:
    """Return whether a run ended like its previous launch: by the same self-caused signal, in the same phase and at the same step.

    Args:
        cause: the verdict to blame.
        before: `failure` of the previous launch's summary.json.
    """
    same = before is not None and all(getattr(cause, key) == before.get(key) for key in ("exit_code", "phase", "step"))
    return same and signal_of(cause.exit_code) in CRASHES
