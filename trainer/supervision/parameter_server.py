"""Supervisors of an asynchronous run: while the chief trains, another host's worker starts again alone, and no worker waits for it.

The chief's supervisor listens on its worker's direct port, which that worker does not use; all other supervisors keep a connection to
it. When its worker ends well, it sends a message, and the others end their workers. If the connection ends without a message, the
chief or its host is lost: the others end their workers, too, and all supervisors meet as in a synchronous run. The loss of a
parameter server ends the chief, so it is covered as well.
"""

import contextlib
import dataclasses
import math
import socket
import subprocess
from collections.abc import Collection, Sequence
from typing import Any

from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import DONE, FAILED, PREEMPTED, RESTART
from trainer.network import handshake
from trainer.parameter_server.roles import EVALUATOR, of_host
from trainer.supervision import restart_policy
from trainer.supervision.child import Pulse, Start
from trainer.supervision.post import Post
from trainer.supervision.rejoin import PAUSE_S, Address, EntryPort, EntryRequest, SupervisorCall
from trainer.supervision.restart_policy import FINAL, Report
from trainer.supervision.supervisor import AGAIN_S, Order, Supervisor, say

ENDED = {DONE: b"F", PREEMPTED: b"P"}
"""Message of the chief's supervisor when its worker has ended for good, by exit code."""
SETTLED_S = 60.0
"""Seconds after which a failure of a worker is not attributed to its start."""
EVALUATOR_S = 10.0
"""Seconds that the others wait for an evaluator that starts again with them."""
LEFT = "the chief is lost, or its host"


def of(post: Post, clock: Clock = CLOCK, popen: Start = subprocess.Popen) -> Supervisor:
    """Make the supervisor of a host of an asynchronous run."""
    return (WorkerSupervisor if post.rank else ChiefSupervisor)(post, clock, popen)


class AsynchronousSupervisor(Supervisor):
    """Base of the supervisors of all roles."""

    def _cluster(self) -> dict[str, Any]:
        return of_host(self._post.endpoints, self._post.servers or {}, self._post.apart, self._post.rank)

    def _more_arguments(self) -> list[str]:
        servers, rank = list(self._post.servers or {}), self._post.rank
        return ["--server", str(servers.index(rank))] if rank in servers and rank not in self._post.apart else []

    def _enough(self, there: Collection[int]) -> bool:
        """Return whether all hosts needed for training are there, and evaluators are there or overdue."""
        ranks = set(range(self._post.workers))
        if not {rank for rank in ranks if self._post.apart.get(rank) != EVALUATOR} <= set(there):
            self._enough_at = math.inf
            return False
        now = self._clock.monotonic()
        self._enough_at = min(self._enough_at, now)
        return ranks <= set(there) or now - self._enough_at >= EVALUATOR_S


class ChiefSupervisor(AsynchronousSupervisor):
    """Supervisor of the chief, which informs the others of its worker's end."""

    def _train(self) -> Report:
        post = self._post
        entry = EntryPort(post.rank, post.peers, post.secret, set(range(1, post.workers)), lambda: None, self._clock)
        report = None
        try:
            report = super()._train()
        finally:
            for_good = report is not None and (report.code == DONE or self._is_cancelled(report))
            entry.close(ENDED[report.code] if report is not None and for_good else b"")
        return report


class WorkerSupervisor(AsynchronousSupervisor):
    """Supervisor of another role, which starts its worker again while the chief trains."""

    _attendance: "Attendance"
    _failures = 0
    """Number of successive ends of the worker soon after its start."""

    def _train(self) -> Report:
        with Attendance(self._post.rank, self._post.peers, self._post.secret, self._clock) as self._attendance:
            while True:
                begun = self._clock.monotonic()
                report = self._as_the_chief(super()._train())
                self._failures = 1 if self._clock.monotonic() - begun >= SETTLED_S else self._failures + 1
                if self._is_over() or report.code in (DONE, PREEMPTED, FAILED):
                    return report
                how = restart_policy.failure(report).words
                if refused := self._limit():
                    say(f"error: this worker {how}; {refused}")
                    return dataclasses.replace(report, code=FAILED)
                self._history.restarts.append(self._clock.time())
                restart = len(self._history.restarts)
                words = f"this worker {how}; it starts again, and the others go on (restart {restart} of this host)"
                say(words)
                self._metrics.record("warning", text=words)
                self._pause(restart_policy.backoff(self._failures - 1))
                if self._is_over():
                    return self._as_the_chief(report)

    def _pause(self, seconds: float) -> None:
        """Wait, unless the run is over for this host."""
        until = self._clock.monotonic() + seconds
        while self._clock.monotonic() < until and not self._is_over():
            self._clock.sleep(AGAIN_S)

    def _is_over(self) -> bool:
        return bool(self._signalled) or self._attendance.over

    def _as_the_chief(self, report: Report) -> Report:
        """The report of a worker that was ended because the chief's worker has ended."""
        if not self._attendance.over:
            return report
        codes = {word: code for code, word in ENDED.items()}
        return dataclasses.replace(report, code=codes.get(self._attendance.word, RESTART), message="")

    def _limit(self) -> str:
        """Reason why this worker does not start again; empty if it does."""
        limits, times = self._post.limits, self._history.restarts
        if len(times) >= limits.restarts:
            return f"recovery.max_restarts={limits.restarts} is reached"
        recent = self._history.recent(self._clock.time())
        return f"recovery.max_restarts_per_hour={limits.per_hour} is reached" if recent >= limits.per_hour else ""

    def _look(self, pulse: Pulse) -> str:
        why = super()._look(pulse)
        attendance = self._attendance
        if attendance.over:
            return why or LEFT
        if self._stop_asked and not (self._order is Order.CANCEL and attendance.present):
            return why or "was asked to end"
        if not attendance.present and self._clock.monotonic() - attendance.since > self._post.rejoin_wait:
            return why or f"the chief was not there for {self._post.rejoin_wait:.0f} s"
        return why

    def _is_cancelled(self, report: Report) -> bool:
        return report.code == PREEMPTED and self._attendance.word == ENDED[PREEMPTED]

    def _pass_on(self, number: int) -> None:
        """Ignore the signal: the chief needs its workers until its state is saved. `_look` ends this worker."""

    def _may_request_entry(self, report: Report) -> bool:  # noqa: ARG002 - whatever it says
        return True

    def _enter(self, request: EntryRequest | None) -> None:  # noqa: ARG002 - its wait is over
        """Raise ChiefTraining: this host need not wait for the others."""
        raise ChiefTraining

    def _meet(self, report: Report) -> int | None:
        try:
            return super()._meet(report)
        except ChiefTraining:
            if report.code in FINAL:
                # The worker would fail again. A watching command ends the run; otherwise the others go on.
                return report.code
            say("the chief trains: this worker joins it")
            return None


class ChiefTraining(Exception):
    """Raised when the chief already trains."""


class Attendance(SupervisorCall):
    """A connection to the chief's supervisor."""

    def __init__(self, rank: int, addresses: Sequence[Address], secret: bytes, clock: Clock = CLOCK):
        super().__init__(rank, addresses, secret, clock)
        self.present = self.over = False
        """True once the chief's supervisor is there; true once that supervisor has gone."""
        self.word, self.since = b"", clock.monotonic()
        """Last message of the chief's supervisor; start of the wait for that supervisor, on the monotonic clock."""

    def run(self) -> None:
        """Connect, and wait for the message."""
        sockets = handshake.connect_some(*self._place, (), [0], self._look, PAUSE_S, self._clock)
        for connection in sockets.values():
            self.present = True
            with connection:
                while not self._over.is_set() and not self.over:
                    self._listen(connection)

    def _listen(self, connection: socket.socket) -> None:
        if self._clock.select([connection], PAUSE_S):
            with contextlib.suppress(OSError):
                self.word = connection.recv(1)
            self.over = True
