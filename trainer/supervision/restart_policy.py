"""Restart of all workers after one has ended. Pure functions: every supervisor computes the same from the same reports.

A worker that lost a peer, or that something killed, is started again. A worker that ended with a message for the user is not: the same
program would end in the same way. Neither is a run that ends again and again at the same step.
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
"""Exit codes after which nothing starts again."""
LONG_AGO = 1e9
"""In the report of a worker that was lost together with its supervisor: nobody knows when."""
FRUITLESS = 3
"""A run ends at this restart in a row after which it got no further."""
LONGEST_WAIT_S = 60.0


@dataclass(frozen=True)
class Limits:
    """How often workers start again."""

    restarts: int
    """In one launch."""
    per_hour: int


@dataclass(frozen=True)
class Elasticity:
    """When the others go on without a host."""

    wait: float
    """Seconds in which it may return."""
    least: int
    """Fewest workers that go on."""


@dataclass(frozen=True)
class Report:
    """Message of a supervisor to the other supervisors when its worker has ended."""

    generation: int
    """Generation of the worker that ended."""
    code: int
    """Its exit code; 128 and the signal's number if a signal ended it; `LOST`."""
    step: int
    """The last step that it recorded."""
    phase: str
    message: str
    """Why this supervisor ended it; empty if it did not."""
    ago: float
    """Seconds since it ended."""
    restarts: int
    """How often workers were started again, in this launch,"""
    in_last_hour: int
    """and in the last hour."""
    fruitless: int
    """Restarts in a row after which the run got no further."""
    reached: int
    """The largest step that the run had reached at the last restart; -1 before the first."""
    members: list[int]
    """Ranks in the launch of the workers of that generation."""

    def to_bytes(self) -> bytes:
        """For the other supervisors."""
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
    """Next action of all supervisors."""

    generation: int
    """Number of the workers that start now; 0: none, the run ends."""
    wait: float
    """Seconds before they start."""
    fruitless: int
    reached: int
    members: list[int]
    """Ranks in the launch of the workers that start now; spares may be among them."""
    restart: int
    """Number of this restart in the launch, from 1."""
    why: str


def may_go_on(there: Collection[int], workers: int, least: int) -> bool:
    """Return whether some of a launch's hosts, by rank, may train without the rest: more than half of them, or half of them with rank 0.

    So never do two groups without a common host both train. Only the launch's `workers` count, not its spares, whose ranks follow: either
    group could have the spares.
    """
    twice = 2 * sum(rank < workers for rank in there)
    return len(there) >= least and (twice > workers or (twice == workers and 0 in there))


def decide(reports: Mapping[int, Report], hosts: Sequence[str], workers: int, limits: Limits) -> Decision:
    """Decide by the reports of the supervisors that are there.

    Args:
        reports: by rank.
        hosts: names of the launch's workers and, after them, of its spares; some may be lost.
        workers: how many train. Those of lowest rank that are there do, so that spares only take the places of lost workers.
        limits: how often workers start again.
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
    """Why nothing starts again; empty if all do."""
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
    """Seconds before the next start: none after a fault of a run that makes progress, then twice as many each time."""
    return min(LONGEST_WAIT_S, 2.0**fruitless - 1)


def failure(report: Report, rank: int = 0, host: str = "", newest: int = 0) -> Failure:
    """The failure of a worker; one of a generation before the `newest` follows from that of the others."""
    kind = kind_of(report.code, report.message, follows=report.generation < newest)
    return Failure(host, rank, kind, report.step, report.phase, -report.ago, report.code, report.message)
