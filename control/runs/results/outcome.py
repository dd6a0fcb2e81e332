"""The outcome of a run, from the verdicts on its workers: state, root cause, suggested fix. Pure functions."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.common.errors import CRASHES, DIVERGED, DONE, FAILED, PREEMPTED, RESTART, signal_of
from trainer.rundir.phases import Phase
from trainer.supervision.failure import Failure, kind_of
from trainer.supervision.restart_policy import may_go_on

TIMED = (Phase.TRAINING, Phase.ENDED)
"""Phases of the chief whose start times a result shows."""
SCRIPT_PHASE = "running"
"""Phase of a script, which has no real phases."""
GONE = "its session ended without an exit code (killed, or the host was restarted)"
ENDED_WELL, LOST = ("done", "preempted", "running"), "lost"
AWAY = ("gone", "silent", "unreachable")
"""States of a worker that may be lost: its end is unknown."""
IN_SUMMARY = ("host", "rank", "state", "exit_code", "message", "phase", "step", "environment", "again")
"""Fields of `failure` in summary.json."""
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
NATIVE = ("SIGSEGV", "SIGILL")


@dataclass(frozen=True)
class Verdict:
    """Observations of one worker, up to its end."""

    host: str
    rank: int | str
    """Rank of the worker; `-` for a job of Slurm."""
    state: str
    """`running`, `done`, `preempted`, `failed`, `gone`, `silent`, `unreachable`, `unclear`, `ended` (because another worker failed), or
    `lost` (the others went on without it)."""
    phase: str | None = None
    step: int | None = None
    at: float = 0.0
    """Time at which the worker reached its state, seconds since 1970; for a lost worker, the time of its last record."""
    exit_code: int | None = None
    message: str | None = None
    last_lines: list[str] | None = None
    """The end of its worker.log."""
    ended_by_us: bool = False
    phases_began: dict[str, float] | None = None
    """Start times of the phases in `TIMED`; None if the worker was not watched."""
    environment: dict[str, str] | None = None
    again: bool | None = None
    """True if the previous launch ended the same way; None if not checked."""

    @property
    def failure(self) -> Failure:
        """The worker's end as a `Failure`."""
        phase = self.phase if self.phase and self.phase not in ("-", SCRIPT_PHASE) else ""
        kind = kind_of(self.exit_code, follows=self.ended_by_us)
        return Failure(self.host, self.rank, kind, self.step or 0, phase, self.at, self.exit_code)

    def to_dict(self) -> dict[str, Any]:
        """The fields with a value, for Ansible and for `Verdict(**...)`."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @property
    def in_summary(self) -> dict[str, Any]:
        """The entry `failure` of summary.json."""
        return {name: getattr(self, name) for name in IN_SUMMARY}

    def crashed_again(self, before: Mapping[str, Any] | None) -> bool:
        """Return whether a run crashed as its previous launch did: by the same self-caused signal, in the same phase, at the same step.

        Args:
            before: `failure` of the previous launch's summary.json.
        """
        same = before is not None and all(getattr(self, key) == before.get(key) for key in ("exit_code", "phase", "step"))
        return same and signal_of(self.exit_code) in CRASHES

    @property
    def without_onednn(self) -> str:
        """Option that continues a run without oneDNN after a crash of native code; empty if it would not help."""
        tried = (self.environment or {}).get(ONEDNN) == "0"
        return f"set=train.environment.{ONEDNN}=0" if signal_of(self.exit_code) in NATIVE and not tried else ""

    def ended(self, separator: str) -> str:
        """Text on a worker's end, or, after the separator, on its last state."""
        words = self.failure.words
        return f"{self.host} (rank {self.rank})" + (f" {words}" if words else f"{separator}{self.state}")

    @property
    def hints(self) -> list[str]:
        """Lines of advice after a crash of native code."""
        lines = ["  The previous launch ended the same way; continued as it is, the run will end like that again."] if self.again else []
        if signal_of(self.exit_code) not in NATIVE:
            return lines
        if option := self.without_onednn:
            return [
                *lines,
                "  Native code crashed. oneDNN, TensorFlow's library for CPUs, crashes with some layers (strided 1x1 convolutions).",
                f"  Fix: train without it: -e {option}, or worker_environment: {{{ONEDNN}: 0}} in the inventory",
            ]
        return [*lines, f"  Native code crashed, but not in oneDNN ({ONEDNN}=0 is set). Fix: check what the model's own code calls"]


class Verdicts(tuple[Verdict, ...]):
    """The verdicts on all workers of a run, by rank."""

    __slots__ = ()

    @property
    def root_cause(self) -> Verdict | None:
        """The verdict with the first failure; None if no worker failed."""
        failed = [verdict for verdict in self if verdict.state not in (*ENDED_WELL, LOST)]
        return min(failed, key=lambda verdict: verdict.failure.order, default=None)

    def without(self, dispensable: Collection[str]) -> "Verdicts":
        """The verdicts, with state `lost` for dispensable hosts that have not ended well."""
        return self._losing(lambda verdict: verdict.host in dispensable and verdict.state not in ENDED_WELL)

    def without_lost(self, workers: int) -> "Verdicts":
        """The verdicts of an elastic run: `lost` are workers that are away or found no others, if enough others went on without them.

        Spares, whose ranks follow those of the `workers`, count only if they trained.
        """
        trained = Verdicts(verdict for verdict in self if int(verdict.rank) < workers or verdict.step)
        if not may_go_on([int(verdict.rank) for verdict in trained if verdict.state in ENDED_WELL], workers, 1):
            return trained
        return trained._losing(lambda verdict: verdict.state in AWAY or verdict.exit_code == RESTART)

    def _losing(self, is_lost: Callable[[Verdict], bool]) -> "Verdicts":
        return Verdicts(dataclasses.replace(verdict, state=LOST) if is_lost(verdict) else verdict for verdict in self)

    @property
    def lost(self) -> list[dict[str, Any]]:
        """The entry `lost` of summary.json: hosts, and the times of their last records."""
        return [
            {"host": verdict.host, "rank": verdict.rank, "step": verdict.step, "at": round(verdict.at, 3)}
            for verdict in self
            if verdict.state == LOST
        ]

    def run_state(self, chief_state: str | None, cancelled: bool, script: bool = False) -> str:
        """The run's state for summary.json.

        A worker that dies after a request to end (`cancelled`) has not failed, unless it reports its own error: then its state could not be
        saved. A `script` may end with any exit code after such a request.
        """
        if (cause := self.root_cause) is not None:
            return "CANCELLED" if cancelled and (script or cause.exit_code not in (FAILED, DIVERGED)) else "FAILED"
        states = {verdict.state for verdict in self}
        if "running" in states:
            return "RUNNING"
        if "preempted" in states:
            return "CANCELLED" if cancelled or chief_state == "CANCELLED" else "PREEMPTED"
        return "SUCCEEDED"

    @property
    def failure_text(self) -> str:
        """Text on the root cause: first failing host, rank, exit code, last lines; then the ends of the others. Empty if none failed."""
        cause = self.root_cause
        if cause is None:
            return ""
        lines = [f"First failure: {cause.ended(', ')}", *cause.hints]
        if cause.message:
            lines.append(f"  {cause.message}")
        if cause.last_lines:
            lines += [f"  last lines of {cause.host}/worker.log:", *(f"    {line}" for line in cause.last_lines)]
        return "\n".join([*lines, *(f"  {other.ended(': ')}" for other in self if other is not cause)])

    def launch_times(self, entered: float | None, now: float | None, stages: Sequence[tuple[str, float]] = ()) -> dict[str, Any] | None:
        """Durations of a launch in seconds, for summary.json, by the clock of the machine where Enter was pressed; None if unknown.

        Args:
            entered: time at which Enter was pressed, seconds since 1970.
            now: time at which the launching command shows the result, seconds since 1970. None for another command, perhaps much later:
            then the last worker's end counts.
            stages: the launching command's stages, with their starts in seconds since 1970.

        Training lasts from the first step to the end of the last epoch, including validation and saving.
        """
        began = next((verdict.phases_began for verdict in self if verdict.rank == 0), None)
        if entered is None or began is None:
            return None
        end = now if now is not None else self.ended_at
        times: dict[str, Any] = {
            "until": "result" if now is not None else "last worker's end",
            "seconds_from_enter": round(end - entered, 3),
        }
        if (first := began.get(Phase.TRAINING)) is not None:
            last = began.get(Phase.ENDED, self.ended_at)
            times |= {"seconds_to_training": first - entered, "seconds_training": last - first, "seconds_after_training": end - last}
        if stages:
            times["stages"] = [[name, round(at - entered, 3)] for name, at in stages]
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in times.items()}

    @property
    def ended_at(self) -> float:
        """End of the last worker, seconds since 1970."""
        return max(verdict.at for verdict in self)


def of_exit_code(code: int, script: bool = False) -> str:
    """State of a worker that ended, from its exit code; for a user's script, only 0 has a meaning."""
    if script:
        return "done" if code == DONE else "failed"
    return {DONE: "done", PREEMPTED: "preempted"}.get(code, "failed")


def signal_name(code: int) -> str:
    """Text on the signal behind a shell's exit code: ` (killed by SIGKILL)` for 137; empty if there was none."""
    name = signal_of(code)
    return f" (killed by {name})" if name else ""
