"""Runs that wait for their turn: their tickets, and the queues that hosts report."""

import itertools
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from control.runs.results.outcome import Verdict
from trainer.rundir.phases import Phase


def ticket(nonce: str) -> str:
    """A new ticket with the current time; `nonce` identifies the launch."""
    return f"{time.time_ns() // 1_000_000:013d}-{nonce}"


def progress(verdicts: Sequence[Verdict]) -> str:
    """Progress of a run that has not ended, in words."""
    notes = [verdict.message for verdict in verdicts if verdict.phase == Phase.QUEUED]
    return f"is queued: {notes[0]}" if notes else "is under way"


@dataclass(frozen=True)
class Jobs:
    """Runs that train on hosts or wait for hosts, according to the hosts."""

    hosts: Collection[str] = ()
    """Hosts that answered."""
    states: Mapping[str, str] = field(default_factory=dict)
    """States by run; waiting runs come last, in the order of their turns."""
    by_host: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    """Jobs by host: running jobs first, then waiting jobs in the order of their turns."""

    @classmethod
    def of(cls, answers: Mapping[str, Sequence[dict[str, Any]]]) -> "Jobs":
        """Read the answers of `worker_jobs`, by host."""
        jobs = [job for listed in answers.values() for job in listed]
        tickets = {job["run"]: job["ticket"] for job in jobs if job["state"] == Phase.QUEUED}
        waiting = sorted(tickets, key=lambda run: tickets[run])
        states = {job["run"]: "RUNNING" for job in jobs if job["state"] != Phase.QUEUED}
        return cls(list(answers), states | {run: f"QUEUED ({number})" for number, run in enumerate(waiting, 1)}, answers)

    def note(self, run: str, host: str) -> str:
        """Text on a run's place in a host's queue; empty if the run does not wait there."""
        jobs = self.by_host.get(host, ())
        if not any(job["run"] == run and job["state"] == Phase.QUEUED for job in jobs):
            return ""
        before = list(itertools.takewhile(lambda name: name != run, (job["run"] for job in jobs)))
        return f"behind run {', '.join(before)}" if before else "next"

    def has_ended(self, run: str, hosts: Collection[str]) -> bool:
        """Return whether all of a run's hosts answered, and none has the run."""
        return bool(hosts) and run not in self.states and set(hosts) <= set(self.hosts)
