"""What a run came to, from what was seen of each worker. Pure functions."""

from typing import Any

PREEMPTED, RESTART, DONE = 42, 75, 0


def root_cause(verdicts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The verdict to blame: the first failure by time that is not only the loss of a peer.

    A worker that exits with 75 lost a peer; it is blamed only when nobody else failed. One that we
    ended because another failed comes last of all. A worker that was silent, gone or out of reach
    counts from when it was last heard.
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


def of_exit_code(code: int) -> str:
    """State of a worker that ended."""
    return {DONE: "done", PREEMPTED: "preempted"}.get(code, "failed")
