"""The outcome of a run, from what was seen of each worker. Pure functions."""

import signal
from typing import Any

from trainer.errors import DONE, PREEMPTED, RESTART

TIMED = ("training", "ended")
"""Phases of the chief whose start times a result shows."""
CRASHES = ("SIGSEGV", "SIGILL", "SIGFPE", "SIGBUS", "SIGABRT", "SIGTRAP", "SIGSYS")
"""Signals that a process causes itself; others come from outside."""


def root_cause(verdicts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The verdict to blame: the earliest failure that is not merely the loss of a peer.

    A worker that exits with RESTART lost a peer; it is blamed only if no other worker failed. A worker that we
    ended because another failed comes last. A worker that was silent, gone or unreachable counts from when it
    was last heard.
    """
    failed = [verdict for verdict in verdicts if verdict["state"] not in ("done", "preempted", "running")]
    if not failed:
        return None
    return min(failed, key=lambda verdict: (bool(verdict.get("ended_by_us")), verdict.get("exit_code") == RESTART, verdict.get("at") or 0))


def state(verdicts: list[dict[str, Any]], chief_state: str | None, cancelled: bool) -> str:
    """The run's state for summary.json."""
    if root_cause(verdicts) is not None:
        return "FAILED"
    if any(verdict["state"] == "running" for verdict in verdicts):
        return "RUNNING"
    if any(verdict["state"] == "preempted" for verdict in verdicts):
        return "CANCELLED" if cancelled or chief_state == "CANCELLED" else "PREEMPTED"
    return "SUCCEEDED"


def launch_times(entered: float | None, verdicts: list[dict[str, Any]], now: float | None) -> dict[str, Any] | None:
    """Durations of a launch by the clock of the machine where Enter was pressed, for summary.json; None if unknown.

    Args:
        entered: when Enter was pressed, in seconds since 1970.
        verdicts: of all workers; the chief's has `phases_began`.
        now: when the command that launched the run shows the result. None for a command that came back to it,
            perhaps much later: then the last worker's end counts.

    Training lasts from the first step to the end of the last epoch, including validation and saving.
    """
    began = next((verdict["phases_began"] for verdict in verdicts if verdict["rank"] == 0 and "phases_began" in verdict), None)
    if entered is None or began is None:
        return None
    end = now if now is not None else max(verdict["at"] for verdict in verdicts)
    times: dict[str, Any] = {"until": "result" if now is not None else "last worker's end", "seconds_from_enter": round(end - entered, 3)}
    if (first := began.get("training")) is not None:
        last = began.get("ended", max(verdict["at"] for verdict in verdicts))
        times |= {"seconds_to_training": first - entered, "seconds_training": last - first, "seconds_after_training": end - last}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in times.items()}


def of_exit_code(code: int) -> str:
    """State of a worker that ended."""
    return {DONE: "done", PREEMPTED: "preempted"}.get(code, "failed")


def signal_of(code: int | None) -> str:
    """Name of the signal that ended a process, from a shell's exit code (128 + number) or Python's (negative); empty for none."""
    try:
        return signal.Signals(-code if code < 0 else code - 128).name if code else ""
    except ValueError:
        return ""


def crashed_again(failure: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Whether a run ended like its previous launch: by the same self-caused signal, in the same phase and at the same step."""
    same = before is not None and all(failure.get(key) == before.get(key) for key in ("exit_code", "phase", "step"))
    return same and signal_of(failure.get("exit_code")) in CRASHES
