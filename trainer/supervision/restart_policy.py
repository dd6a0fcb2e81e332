"""Restart of all workers after one has ended. Pure functions: every supervisor computes the same result from the same reports.

A worker that lost a peer or was killed is started again. A worker that ended with a message for the user is not, because the same
program would end in the same way. Neither is a run that ends repeatedly at the same step.
"""

import json
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from trainer.common.errors import CRASHES, DIVERGED, DONE, FAILED, PREEMPTED, LockstepError, signal_of
from trainer.common.safe_text import printable
from trainer.network.member import named
from trainer.supervision.failure import TEXT, Failure, kind_of

FINAL = (DONE, FAILED, DIVERGED, PREEMPTED)
"""Exit codes after which no worker starts again."""
LONG_AGO = 1e9
"""Seconds in the report of a worker that was lost together with its supervisor, at an unknown time."""
FRUITLESS = 3
"""Number of successive restarts without progress at which a run ends."""
LONGEST_WAIT_S = 60.0


@dataclass(frozen=True)
class Limits:
    """Limits on restarts of workers."""

    restarts: int
    """Most restarts in one launch."""
    per_hour: int


@dataclass(frozen=True)
class Elasticity:
    """Conditions under which the others go on without a host."""

    wait: float
    """Seconds within which the lost host may return."""
    least: int
    """Fewest workers with which the run goes on."""


@dataclass(frozen=True)
class Report:
    """Message of a supervisor to the others when its worker has ended."""

    generation: int
    """Generation of the worker that ended."""
    code: int
    """The worker's exit code, 128 plus the signal's number if a signal ended it, or `LOST`."""
    step: int
    """The last step that the worker recorded."""
    phase: str
    message: str
    """Reason why this supervisor ended the worker; empty if it did not."""
    ago: float
    """Seconds since the worker ended."""
    restarts: int
    """Number of restarts in this launch."""
    in_last_hour: int
    """Number of restarts in the last hour."""
    fruitless: int
    """Number of successive restarts without progress."""
    reached: int
    """The largest step that the run had reached at the last restart; -1 before the first."""
    members: list[int]
    """Ranks, in the launch, of that generation's workers."""

    def to_bytes(self) -> bytes:
        """The report as bytes for the other supervisors."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Report":
        """Parse another supervisor's report; LockstepError if the data is no report."""
        try:
            values: dict[str, Any] = json.loads(data)
            report = cls(**values)
        except (ValueError, TypeError) as error:
            raise LockstepError(f"a supervisor sent no report: {printable(str(error), TEXT)}") from None
        fit = all(type(getattr(report, one.name)) is (typing.get_origin(one.type) or one.type) for one in fields(cls))
        if not fit or any(type(rank) is not int for rank in report.members):
            raise LockstepError(f"a supervisor's report has a value of the wrong type: {printable(str(values), TEXT)}")
        return report


@dataclass(frozen=True)
class Decision:
    """Common next action of all supervisors."""

    generation: int
    """Generation of the workers that start now; 0: no worker starts, the run ends."""
    wait: float
    """Seconds before the workers start."""
    fruitless: int
    reached: int
    members: list[int]
    """Ranks, in the launch, of the workers that start now; spares may be among them."""
    restart: int
    """Number of this restart in the launch, from 1."""
    why: str


def may_go_on(there: Collection[int], workers: int, least: int) -> bool:
    """Return whether some of a launch's hosts, by rank, may train without the rest: more than half, or half including rank 0.

    This prevents two groups without a common host from both training. Only the launch's `workers` count. Its spares, whose ranks
    follow, do not, because either group could have them.
    """
    twice = 2 * sum(rank < workers for rank in there)
    return len(there) >= least and (twice > workers or (twice == workers and 0 in there))


def decide(reports: Mapping[int, Report], hosts: Sequence[str], workers: int, limits: Limits) -> Decision:
    """Decide from the reports of the present supervisors.

    Args:
        reports: reports by rank.
        hosts: names of the launch's workers and, after them, of its spares; some may be lost.
        workers: number of hosts that train: the present ones of lowest rank, so that spares only take the places of lost workers.
        limits: limits on restarts.
    """
    newest = max(reports.values(), key=lambda one: one.generation)
    failures = [failure(reports[rank], rank, hosts[rank], newest.generation) for rank in sorted(reports)]
    blamed = min(failures, key=lambda one: one.order)
    what = f"rank {blamed.rank} ({blamed.host}) {blamed.words}"
    if lost := [one for one in range(len(hosts)) if one in newest.members and one not in reports]:
        what = f"{what}; {named(hosts, lost)} did not come back"
    members = sorted(reports)[:workers]
    if newcomers := [one for one in members if one >= workers and one not in newest.members]:
        places = "takes the place of a lost host" if len(newcomers) == 1 else "take the places of lost hosts"
        what = f"{what}; {named(hosts, newcomers)} {places}"
    step, reached = max(one.step for one in reports.values()), max(one.reached for one in reports.values())
    fruitless = 0 if step > reached else 1 + max(one.fruitless for one in reports.values())
    furthest = max(step, reached)
    if end := _why_end(reports, blamed.code, fruitless, furthest, limits):
        return Decision(0, 0.0, fruitless, furthest, [], 0, f"{what}; {end}")
    restart = 1 + max(one.restarts for one in reports.values())
    return Decision(1 + newest.generation, backoff(fruitless), fruitless, furthest, members, restart, what)


def _why_end(reports: Mapping[int, Report], code: int | None, fruitless: int, furthest: int, limits: Limits) -> str:
    """Reason why no worker starts again; empty if all do."""
    restarts, in_last_hour = (max(getattr(one, name) for one in reports.values()) for name in ("restarts", "in_last_hour"))
    reasons = {
        "nothing starts again after that": code in FINAL,
        "a worker was asked to end": any(one.code in (DONE, PREEMPTED) for one in reports.values()),
        "it would crash there again": signal_of(code) in CRASHES and fruitless > 0,
        f"the run got no further than step {furthest:,} {FRUITLESS} times in a row": fruitless >= FRUITLESS,
        f"recovery.max_restarts={limits.restarts} is reached": restarts >= limits.restarts,
        f"recovery.max_restarts_per_hour={limits.per_hour} is reached": in_last_hour >= limits.per_hour,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def backoff(fruitless: int) -> float:
    """Seconds before the next start: 0 if the run made progress before the fault, then doubling at each restart without progress."""
    return min(LONGEST_WAIT_S, 2.0**fruitless - 1)


def failure(report: Report, rank: int = 0, host: str = "", newest: int = 0) -> Failure:
    """The failure of a worker; in a generation before the `newest`, it follows from the others' failure."""
    kind = kind_of(report.code, report.message, follows=report.generation < newest)
    return Failure(host, rank, kind, report.step, report.phase, -report.ago, report.code, report.message)
