"""Supervisor: starts its worker; after a fault, it meets the others and starts the worker again, until the run ends."""

import contextlib
import dataclasses
import datetime
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from trainer.common.clock import CLOCK, Clock, repeating
from trainer.common.errors import DONE, PREEMPTED, RESTART, ClusterError
from trainer.common.files import is_read_only, read_json, write_json
from trainer.host import claims, fork_server, tmux_socket
from trainer.host.claims import MARK
from trainer.host.process import LET_IN
from trainer.network.member import tf_config
from trainer.rundir.full_disk import Log
from trainer.rundir.metrics_log import HEARTBEAT_S, METRICS, Metrics
from trainer.rundir.phases import ROOM, TOGETHER, Phase
from trainer.supervision import rendezvous, restart_policy
from trainer.supervision.child import Child, Pulse, Start
from trainer.supervision.failure import LOST
from trainer.supervision.forked import ForkServer
from trainer.supervision.post import Post
from trainer.supervision.rejoin import BROKEN_OFF, FINISHED, Admission, EntryPort, EntryRequest, RunEnd
from trainer.supervision.restart_policy import FINAL, LONG_AGO, Decision, Report, may_go_on
from trainer.supervision.run_folder import RunFolder
from trainer.worker.backend import MODULES

HOUR_S = 3600.0
AGAIN_S = 0.2
"""Seconds before the next attempt to meet the others."""
TELL_S = 30.0
"""Seconds that a supervisor whose worker failed waits for the others to inform them."""
MISSED_S = 15.0
"""Seconds in which hosts that missed the decision to end the run can learn of it, including `REQUEST_AFTER_S` before their request."""
SIGNALLED = "ended because a worker was sent SIGTERM"
"""Reason for the end of a worker that saved its state together with all others, without a request to end the run."""
MADE_ROOM = "ended its epoch to take a lost host in again"
"""Reason for the end of a worker that made room for a newcomer."""
REMOVED = "lost its run directory, which somebody removed or moved"
"""Reason for ending a worker that went on without the files of its run."""
NOT_ALL = "another worker ended before all trained"
"""Reason for ending a worker that waited for one that never came: it lost a peer."""
SPARE_WAITS = 3
"""Multiple of `rejoin_wait` that a spare waits for training to begin or go on: if all others are lost, no host can inform it."""
GRACE_S = 3.0
"""Seconds that hosts which may go on wait for a host that had been lost before."""
HANGUP_S = 1.0
"""Seconds from the terminal's end to the return in a new session: a user who ends a session also ends its processes by then."""
SAVE_S = 120.0
"""Seconds for a worker to save its state after its session was ended by hand."""


@dataclass
class History:
    """Record of earlier generations, which a supervisor needs even after it was killed."""

    launch: str
    began: float = 0.0
    """Start of the launch's first worker here, seconds since 1970."""
    generation: int = 0
    restarts: list[float] = field(default_factory=list)
    """Times of restarts, seconds since 1970."""
    fruitless: int = 0
    reached: int = -1
    members: list[int] = field(default_factory=list)
    """Ranks of this generation's workers; empty before the first generation."""

    @classmethod
    def read(cls, path: Path, launch: str) -> "History":
        """Read the launch's record; empty if there is none."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            history = cls(**read_json(path)["history"])
            if history.launch == launch:
                return history
        return cls(launch)

    def recent(self, now: float) -> int:
        """Number of restarts in the hour before `now`, seconds since 1970, without later times from before the clock was set back."""
        return sum(now - HOUR_S < at <= now for at in self.restarts)


class State(Enum):
    """Activity of a supervisor."""

    MEETING = auto()
    """Agrees with the others on the next generation."""
    WAITING = auto()
    """As `MEETING`, but a signal ends the wait for the other supervisors."""
    TRAINING = auto()
    """Has a worker."""
    ENDED = auto()


FOLLOWING = {
    State.MEETING: (State.WAITING, State.MEETING, State.TRAINING, State.ENDED),
    State.WAITING: (State.MEETING,),
    State.TRAINING: (State.MEETING, State.ENDED),
    State.ENDED: (),
}
"""Allowed next states, by state; a spare that stands by meets the others again."""


class Order(Enum):
    """Kind of a supervisor's requested end, according to its signals and to the file that marks a user's request."""

    GO_ON = auto()
    RETURN = auto()
    """Only the tmux server is gone: end, and return in a new session."""
    GO_DOWN = auto()
    """The host goes down, with both signals in any order: end, to be started again at its boot."""
    CANCEL = auto()
    """A user ends the run."""


class EndRequest(KeyboardInterrupt):
    """Raised when this supervisor must end while it waits for the others; no Exception, because asyncio keeps those inside a task."""


class Supervisor:
    """Runs one worker, generation after generation."""

    def __init__(self, post: Post, clock: Clock = CLOCK, popen: Start = subprocess.Popen):
        """Read the files of an earlier supervisor of this launch."""
        self._clock, self._popen = clock, popen
        self._post, self._metrics, self._folder = post, Metrics(post.folder / METRICS), RunFolder(post.folder)
        self._file = post.folder / claims.SUPERVISED
        self._history = History.read(self._file, post.launch)
        self._history.began = self._history.began or clock.time()
        self._history.members = self._history.members or list(range(post.workers))
        self._child: Child | None = None
        self._forks = ForkServer.of_host(os.environ.get(fork_server.KEY), MODULES)
        """Process that forks the workers, if there is one."""
        self._entry: EntryPort | None = None
        self._start: rendezvous.Start | None = None
        """Start that is open from the decision to restart until this worker's first step."""
        self._newcomers: set[int] = set()
        """Ranks of lost hosts that are to join the next generation."""
        self._enough_at = math.inf
        """Time since which the present hosts are enough to go on, on this process' clock."""
        self._signalled: dict[int, float] = {}
        """Time of the last arrival of each signal, on this process' clock; SIGHUP is the end of the terminal."""
        self._state = State.MEETING
        self._ended = self._report(LOST, LONG_AGO, "")
        """Report for the others on this worker's end."""
        self._code = PREEMPTED
        """This process' exit code."""

    def run(self) -> int:
        """Supervise to the end of the run; return the exit code of the last worker."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._hang_up)
        return self.supervise()

    def supervise(self) -> int:
        """Supervise as `run` does, without signal handlers, which only a process' main thread can have."""
        if self._order is Order.CANCEL:
            return self._end(PREEMPTED)
        if not (self._history.generation or self._stands_by()):
            self._go_to(State.TRAINING)
        work = {State.MEETING: self._next_generation, State.TRAINING: self._generation}
        while self._state in work:
            self._go_to(work[self._state]())
        return self._end(self._code)

    def _go_to(self, state: State) -> None:
        if state not in FOLLOWING[self._state]:
            raise AssertionError(f"{self._state} is not followed by {state}")
        self._state = state

    def _next_generation(self) -> State:
        """Meet the others; return the next state."""
        code = self._meet(self._ended)
        if code is not None:
            self._code = code
            return State.ENDED
        if not self._stands_by():
            return State.TRAINING
        self._ended = self._report(LOST, LONG_AGO, "")
        return State.MEETING

    def _generation(self) -> State:
        """Train; return the next state."""
        report = self._train()
        if self._signalled or report.code == DONE or self._is_cancelled(report):
            self._code = report.code if report.code in FINAL else PREEMPTED
            return State.ENDED
        self._ended = dataclasses.replace(report, code=RESTART, message=SIGNALLED) if report.code == PREEMPTED else report
        return State.MEETING

    def _stands_by(self) -> bool:
        """Return whether other hosts train, and this host stands by to replace a lost one."""
        return self._post.rank not in self._history.members

    # --- a generation

    def _train(self) -> Report:
        post, generation = self._post, max(1, self._history.generation)
        self._history.generation = generation
        if generation > 1:
            say(f"=== generation {generation}, {datetime.datetime.now(tz=datetime.UTC):%Y-%m-%dT%H:%M:%SZ}, rank {post.rank}")
        members = self._history.members
        self._metrics.record("generation", number=generation, rank=members.index(post.rank), hosts=[post.hosts[one] for one in members])
        # The clock may be wrong after a restart of the host.
        elapsed = max(0.0, self._clock.time() - self._history.began)
        given = ["--generation", str(generation), "--parent", str(os.getpid()), "--elapsed", f"{elapsed:.1f}"]
        arguments = [*post.worker, *given, *self._more_arguments()]
        self._record()
        self._child = Child(post.program, arguments, self._environment(), post.folder / METRICS, self._forks, self._clock, self._popen)
        if self._child.refusal:
            say(f"the worker imports TensorFlow itself: {self._child.refusal}")
            self._end_forks()
        self._record(worker=self._child.pid)
        if self._stop_asked:
            self._child.signal(signal.SIGTERM)
        code = self._child.wait(post.patience, self._look)
        if self._lost_folder:
            code = code if code == DONE else RESTART
            self._child.why = REMOVED
            self._return_to_folder()
        self._close_entry(code == DONE or self._was_cancelled(code))
        self._leave_start(code == DONE)
        if self._child.why == NOT_ALL:
            return self._report(RESTART, 0.0, "")
        made_room = code == RESTART and self._child.pulse.end == ROOM
        return self._report(code, 0.0, MADE_ROOM if made_room else self._child.why)

    def _look(self, pulse: Pulse) -> str:
        """Reason why the worker must end, or empty. Once it trains, the next worker is prepared, and lost hosts may come."""
        tmux_socket.mend()
        self._open_entry()
        if pulse.phase in TOGETHER:
            self._leave_start(trains=True)
        if self._start and self._start.is_lost():
            return NOT_ALL
        if self._lost_folder:
            return REMOVED
        if self._post.standby and self._forks is None and pulse.longest:
            self._forks = ForkServer.beside(self._post.standby, MODULES, self._environment())
        # A host that goes down may send SIGTERM next.
        order, without_terminal = self._order, self._clock.monotonic() - self._signalled.get(signal.SIGHUP, math.inf)
        if order is Order.RETURN and without_terminal >= HANGUP_S:
            return "lost its tmux server"
        return "saved no state in time" if order is Order.CANCEL and without_terminal > SAVE_S else ""

    @property
    def _lost_folder(self) -> bool:
        """True if the run directory must be restored; not if the host goes down or the run is being deleted."""
        return self._folder.is_lost() and signal.SIGHUP not in self._signalled

    def _return_to_folder(self) -> None:
        """Restore the run directory and what this supervisor writes there."""
        self._folder.restore()
        self._metrics = Metrics(self._post.folder / METRICS)
        self._record()

    def _open_entry(self) -> None:
        """Listen for lost hosts and spares once the worker trains; until then, the worker itself needs the port."""
        post, child, members = self._post, self._child, self._history.members
        absent = set(range(len(post.hosts))) - set(members)
        if not (post.elastic and absent and child and child.pulse.phase == Phase.TRAINING) or self._entry:
            return

        def let_in() -> None:
            if len(members) < post.workers:
                child.signal(LET_IN)

        self._entry = EntryPort(post.rank, post.peers, post.secret, absent, let_in, self._clock)

    def _end_forks(self) -> None:
        if self._forks is not None:
            self._forks.end()
        self._forks = None

    def _close_entry(self, finished: bool) -> None:
        self._newcomers = set()
        if self._entry:
            self._entry.close(FINISHED if finished else b"")
            self._newcomers, self._entry = self._entry.newcomers, None

    def _leave_start(self, trains: bool) -> None:
        if self._start:
            self._start.close(trains)
        self._start = None

    def _environment(self) -> dict[str, str]:
        """Environment of a worker."""
        return {**os.environ, "TF_CONFIG": json.dumps(self._cluster())}

    def _cluster(self) -> dict[str, Any]:
        """TF_CONFIG of this generation."""
        post, members = self._post, self._history.members
        return tf_config([post.endpoints[rank] for rank in members], members.index(post.rank))

    def _more_arguments(self) -> list[str]:
        """Arguments of the worker besides those common to all roles."""
        return []

    def _record(self, **pids: int) -> None:
        """Write the record for a later supervisor of this launch, or for one after a restart of the host."""
        known = {"history": dataclasses.asdict(self._history), "session": list(self._post.session)}
        try:
            write_json(self._file, {**known, "pids": {"supervisor": os.getpid(), **pids}})
        except OSError as error:
            say(f"warning: {self._file}: {error.strerror}; if this supervisor is killed, its worker starts as if nothing had been")

    def _report(self, code: int, ago: float, message: str) -> Report:
        history, pulse = self._history, self._child.pulse if self._child else None
        step, phase = (pulse.step, pulse.phase) if pulse else (0, Phase.STARTING)
        rest = message, ago, len(history.restarts), history.recent(self._clock.time()), history.fruitless, history.reached, history.members
        return Report(history.generation, code, step, phase, *rest)

    def _is_cancelled(self, report: Report) -> bool:
        """Return whether the worker ended together with all others, at the request of one of them or at the time limit."""
        return self._was_cancelled(report.code)

    def _was_cancelled(self, code: int) -> bool:
        return code == PREEMPTED and self._child is not None and self._child.pulse.end == "CANCELLED"

    # --- between two generations

    def _meet(self, report: Report) -> int | None:
        """Agree with the others on the next action; None: the next generation starts, else the exit code."""
        ended_at = self._clock.monotonic()
        own = RESTART if report.code == LOST else report.code
        if self._stop_asked and report.code not in FINAL:
            return PREEMPTED
        self._metrics.phase(Phase.STANDING_BY if self._stands_by() else Phase.REJOINING)
        if self._stands_by():
            self._record()
        try:
            with self._may_be_asked(), repeating(HEARTBEAT_S, self._metrics.heartbeat, self._clock):
                self._await_disk()
                decision, self._start = self._decision(report, ended_at)
                if not decision.generation:
                    if report.code not in FINAL:
                        say(f"error: {decision.why}")
                    self._tell_absent(self._start)
                    return own
                self._announce(decision)
                self._clock.sleep(decision.wait)
        except EndRequest:
            return PREEMPTED if report.code not in FINAL else own
        except ClusterError as error:
            return self._give_up(error, own)
        self._adopt(decision)
        return None

    def _await_disk(self) -> None:
        """Wait while the run directory can't be written to, at most as long as the others wait for this host; raises ClusterError."""
        folder, deadline = self._post.folder, self._clock.monotonic() + self._rejoin_wait()
        if is_read_only(folder):
            say(f"waiting for the file system of {folder}, which is read-only")
        while is_read_only(folder):
            if self._clock.monotonic() >= deadline:
                raise ClusterError(f"the file system of {folder} is read-only")
            self._clock.sleep(AGAIN_S)

    def _tell_absent(self, start: rendezvous.Start) -> None:
        """Inform hosts that missed the decision to end the run; done by the leader, which alone has the list of participants."""
        post, there = self._post, {self._post.rank, *start.peers}
        absent = set(range(len(post.hosts))) - there
        if min(there) != post.rank or not absent:
            return
        entry = EntryPort(post.rank, post.peers, post.secret, absent, lambda: None, self._clock)
        deadline = self._clock.monotonic() + MISSED_S
        try:
            while not absent <= entry.newcomers and self._clock.monotonic() < deadline:
                self._clock.sleep(AGAIN_S)
        finally:
            entry.close(BROKEN_OFF)

    def _give_up(self, error: ClusterError, own: int) -> int:
        """Exit code of a supervisor with which the others do not go on; `own` is its worker's."""
        if isinstance(error, RunEnd) and error.well and (self._stands_by() or self._post.rank >= self._post.workers):
            return DONE
        if isinstance(error, RunEnd):
            say(f"error: {error}")
        elif own not in FINAL:
            say(f"error: not {self._wanted()} came back within {self._rejoin_wait():.0f} s (recovery.rejoin_wait): {error}")
        return own

    def _adopt(self, decision: Decision) -> None:
        history = self._history
        history.generation, history.fruitless, history.reached = decision.generation, decision.fruitless, decision.reached
        history.members = decision.members
        history.restarts.append(self._clock.time())
        if self._stands_by():
            # The start of the others does not depend on this host.
            self._leave_start(trains=True)

    def _decision(self, report: Report, ended_at: float) -> tuple[Decision, rendezvous.Start]:
        post, waits_since = self._post, ended_at
        wait = self._rejoin_wait()
        if report.code in FINAL:
            # Hosts that go on without a lost one must be informed, too, even before it is certain that they go on.
            wait = TELL_S + (post.elastic.wait if post.elastic else 0.0)
        while True:
            current = dataclasses.replace(report, ago=report.ago + self._clock.monotonic() - ended_at)
            try:
                return self._agree(current, max(1.0, waits_since + wait - self._clock.monotonic()))
            except ClusterError as error:
                # A supervisor left, or the worker of a killed one still holds the port.
                late = not isinstance(error, rendezvous.ConnectionLoss) and self._clock.monotonic() - waits_since >= wait
                if late or isinstance(error, RunEnd):
                    raise
                self._clock.sleep(AGAIN_S)
            except Admission:
                waits_since = self._clock.monotonic()

    def _rejoin_wait(self) -> float:
        return self._post.rejoin_wait * (SPARE_WAITS if self._stands_by() else 1)

    def _agree(self, report: Report, wait: float) -> tuple[Decision, rendezvous.Start]:
        """Agree with all supervisors on a decision and a start; raises Admission if the others trained without this host and admit it."""
        post, self._enough_at = self._post, math.inf
        asks = self._may_request_entry(report)
        with EntryRequest(post.rank, post.peers, post.secret, self._clock) if asks else contextlib.nullcontext() as request:

            def enough(there: Collection[int]) -> bool:
                if request:
                    request.check()
                return self._enough(there)

            try:
                return rendezvous.agree(post.rank, post.peers, post.secret, report, self._decide, wait, enough, self._clock)
            except Admission:
                self._enter(request)
                raise

    def _may_request_entry(self, report: Report) -> bool:
        """Return whether the other hosts may train without this one, so that it must request entry."""
        return self._post.elastic is not None and report.code not in FINAL

    def _enter(self, request: EntryRequest | None) -> None:
        """Wait at the ports that have accepted the request."""
        if request:
            request.wait()

    def _decide(self, reports: Any) -> Decision:
        return restart_policy.decide(reports, self._post.hosts, self._post.workers, self._post.limits)

    def _enough(self, there: Collection[int]) -> bool:
        """Return whether the present hosts go on without the others.

        The wait counts from the moment when they are enough: otherwise a host that waited alone could start with the first arrival, without
        the rest.
        """
        elastic, members = self._post.elastic, set(self._history.members)
        if elastic is None or not may_go_on(there, self._post.workers, elastic.least):
            self._enough_at = math.inf
            return False
        everyone = set(range(self._post.workers))
        if everyone <= set(there) or (members <= set(there) and len(members) == self._post.workers):
            # Any further host would only stand by.
            return True
        now = self._clock.monotonic()
        self._enough_at = min(self._enough_at, now)
        return now - self._enough_at >= (GRACE_S if members | self._newcomers <= set(there) else elastic.wait)

    def _wanted(self) -> str:
        """Text on the number of workers that must be present to go on."""
        elastic, all_of_them = self._post.elastic, self._post.workers
        if elastic is None:
            return "all workers"
        return f"enough of the {all_of_them} workers (at least {elastic.least}, and more than half or half with {self._post.hosts[0]})"

    def _announce(self, decision: Decision) -> None:
        members, workers = decision.members, self._post.workers
        who = "all workers start" if len(members) == workers else f"{len(members)} of {workers} workers start"
        words = f"{decision.why}; {who} again from the last saved state (restart {decision.restart} of this launch)"
        say(words)
        if self._post.rank == members[0]:
            self._metrics.record("warning", text=words)

    # --- signals, and the end

    @contextlib.contextmanager
    def _may_be_asked(self) -> Iterator[None]:
        self._go_to(State.WAITING)
        try:
            yield
        finally:
            self._state = State.MEETING

    def _stop(self, number: int, _: Any) -> None:
        self._signalled[number] = self._clock.monotonic()
        if number == signal.SIGINT:
            # A user at the session's terminal.
            with contextlib.suppress(OSError):
                (self._post.folder / MARK).touch()
        if self._state is not State.WAITING:
            self._pass_on(number)
        self._break_off()

    def _pass_on(self, number: int) -> None:
        """Request the worker's end."""
        if self._child is not None:
            self._child.signal(number)

    def _hang_up(self, *_: Any) -> None:
        """React to the loss of the session: at a user's request, end; with its tmux server, return in a new session."""
        self._signalled[signal.SIGHUP] = self._clock.monotonic()
        if self._order is Order.CANCEL:
            self._stop(signal.SIGTERM, None)
        else:
            self._break_off()

    @property
    def _stop_asked(self) -> bool:
        return bool(self._signalled.keys() - {signal.SIGHUP})

    def _break_off(self) -> None:
        """Leave the wait for the others, only once, because signals come in pairs."""
        if self._state is State.WAITING:
            self._go_to(State.MEETING)
            raise EndRequest

    @property
    def _order(self) -> Order:
        if (self._post.folder / MARK).exists():
            # The request may have come while no supervisor was there.
            return Order.CANCEL
        if self._stop_asked:
            return Order.GO_DOWN
        return Order.RETURN if self._signalled else Order.GO_ON

    def _return(self) -> int:
        if self._post.session and (error := claims.start_session(self._post.session)):
            say(f"error: tmux could not start this session again: {error}")
        return RESTART

    def _end(self, code: int) -> int:
        self._end_forks()
        if signal.SIGHUP in self._signalled:
            self._clock.sleep(HANGUP_S)
        order = self._order
        if order is Order.RETURN:
            return self._return()
        if order is Order.GO_DOWN and code != DONE:
            # The program that starts at the host's boot finds the file.
            self._metrics.phase(Phase.DOWN)
            return PREEMPTED
        if order is Order.CANCEL and signal.SIGHUP in self._signalled:
            self._write_end(code)
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            say(f"warning: {self._file}: {error.strerror}")
        self._metrics.phase(Phase.ENDED)
        return code

    def _write_end(self, code: int) -> None:
        """Write the exit code as the session's shell would, which is gone with the session."""
        post = self._post
        times = {"started_at": self._history.began, "ended_at": self._clock.time()}
        write_json(post.folder / claims.EXIT, {"host": post.hosts[post.rank], "rank": post.rank, "exit_code": code, **times})


def say(words: str) -> None:
    """Write a message for the user to worker.log."""
    print(words, file=Log(sys.stderr), flush=True)
