"""Watch the workers of a run until they end, show the chief's progress, collect results: one process, a thread for each host."""

import contextlib
import contextvars
import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.utils.display import Display

from control.common import project
from control.common.progress_line import Line
from control.remote import modules, worker_files
from control.remote.follow import FollowingFailed, HostUnreachable
from control.remote.follow_program import BEAT_S, READ_ONLY, REMOVED
from control.remote.worker_access import Seen, Worker, of_fault
from control.runs.hosts.inventory_hosts import worker_seconds
from control.runs.launch import launches, under_way
from control.runs.launch.waiting_runs import Jobs
from control.runs.planning import kept_choices
from control.runs.results import generations, outcome
from control.runs.results.outcome import Verdict
from control.runs.results.run_folder import RunFolder
from control.runs.show.progress import Progress
from plugins.shared.base_action import Action
from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import DONE
from trainer.common.plain_values import from_plain
from trainer.host import claims
from trainer.parameter_server.roles import EVALUATOR
from trainer.rundir.launch_record import Host
from trainer.rundir.phases import WAITING, Phase
from trainer.supervision.failure import silent
from trainer.supervision.restart_policy import FINAL

EVERY_S, OTHERS_EVERY_S = 1.0, 5.0
"""Between two messages from the chief's host, and from each other host, while they train."""
FROM_ALL = ("warning", "evaluation")
"""Kinds of records that are shown whoever wrote them."""
ANSWERS_S = 3 * BEAT_S
"""A host that has said nothing for this long does not answer."""
MOMENT_S = 0.5
"""Between two looks at whether another worker has failed."""
AGAIN_S = 1.0
"""Before the next try to reach a host."""
COLLECT_S = 15.0
COLLECTING = 0.02
"""Share of the time in which the chief's files are fetched during training, which delays its steps."""
OTHERS_GRACE_S = 25.0
SCRIPT_GRACE_S = 3.0
"""Grace period of a script, seconds; short, since its other workers need not notice a failed one."""
ESTABLISHED_S = 3.0
"""A script that has run this long counts as started."""
RETURN_S = 15.0
"""How long a supervisor that lost its session may take to return in a new one."""
LATER_S = 30.0
"""How much later than a supervisor the watching command gives up."""
SHUTDOWN = 4
"""How many times as long a worker may be silent after its work as during it."""


class Watched:
    """State that the watches of a run's hosts share."""

    def __init__(self, launched: Sequence[str], workers: int, clock: Clock = CLOCK):
        """Take the names of the launch's hosts, by rank, the spares last, and how many of them are no spares."""
        self.launched, self.workers, self._clock = launched, workers, clock
        self._failed: dict[str, float] = {}
        self._over_at = math.inf
        self.generations: dict[str, Mapping[str, Any]] = {}
        """Newest mark of each host (`generations.note`)."""

    def note_failure(self, host: str) -> None:
        """Note that a host's worker has failed."""
        self._failed.setdefault(host, self._clock.monotonic())

    def since_failure(self, host: str) -> float | None:
        """Seconds since another host's worker failed; None if none did."""
        ages = [self._clock.monotonic() - at for other, at in self._failed.copy().items() if other != host]
        return max(ages, default=None)

    def note_end(self) -> None:
        """Note that the run has come to its end."""
        self._over_at = min(self._over_at, self._clock.monotonic())

    def is_over(self, seconds: float = 0.0) -> bool:
        """Return whether the run ended, at least `seconds` ago: nobody needs to wait for a lost host any more."""
        return self._clock.monotonic() - self._over_at >= seconds

    def chief(self) -> str:
        """Name of the host of an elastic run's chief; empty while that is unclear."""
        return generations.chief(self.generations, self.launched, self.workers)


class ActionModule(Action):
    """Watches all hosts of a run, each in a thread; never fails itself: returns `verdicts`, from which the outcome follows."""

    def act(self, **arguments: Any) -> dict[str, Any]:
        """Watch until all workers are done, failed, silent or unreachable (or under way, if detached)."""
        names = [from_plain(Host, host).name for host in arguments["hosts"]]
        targets = [
            Target.of(arguments, rank, self.task_vars["hostvars"][name]) for rank, name in enumerate(names) if name in arguments["watched"]
        ]
        elastic = any(target.elastic for target in targets)
        watched = Watched(names, int(arguments["counts"]["workers"]) if elastic else len(names))
        watches = [self._watch(target, watched, arguments["counts"]) for target in targets]
        threads = [threading.Thread(target=contextvars.copy_context().run, args=[watch.watch], daemon=True) for watch in watches]
        for thread in threads:
            thread.start()
        if not join(threads):
            return {}
        if elastic and RunFolder(Path(arguments["local"])).is_users:
            _collect_chiefs(watches, watched.chief())
        return {
            "launched_at": launches.launched_at(arguments["local"]),
            "verdicts": {watch.host: watch.verdict.to_dict() for watch in watches},
            "printed": [record for watch in watches for record in watch.progress.printed],
        }

    def _watch(self, target: "Target", watched: Watched, counts: dict[str, Any]) -> "Watch":
        """A watch that has not begun; only the first host's has a progress line of its own."""
        line = Line(every=1e9)
        files = Worker(self.for_host(target.host), target.run_folder, target.folder, target.session, target.script)
        files.say = line.print if target.rank == 0 else None
        run = RunFolder(target.local)
        return Watch(target, watched, files, line, Progress(line, counts, target.quiet, watched.launched, run.noun, run.monitor))


def join(threads: Sequence[threading.Thread]) -> bool:
    """Wait for the threads; False, and without waiting, if the command was killed: the next one must find no other watcher that writes."""
    parent = os.getppid()
    for thread in threads:
        # A signal that another thread receives does not wake this one, which runs the signal's handler.
        while thread.is_alive():
            if os.getppid() != parent:
                return False
            thread.join(MOMENT_S)
    return True


def _collect_chiefs(watches: Sequence["Watch"], chief: str) -> None:
    """Fetch what the workers of an elastic run wrote as chiefs: first what the last one did, which decides what is taken from others."""
    ended = [watch for watch in watches if watch.verdict.state not in ("running", "unreachable")]
    for watch in sorted(ended, key=lambda one: one.host != chief):
        try:
            watch.collect_as_chief(last=watch.host == chief)
        except (HostUnreachable, OSError) as error:
            Display().warning(f"{watch.host}: what it wrote could not be collected: {error}")


@dataclass(frozen=True)
class Target:
    """A worker to watch, and what its watch goes by."""

    run: str
    host: str
    rank: int
    local: Path
    """The run directory on this machine."""
    root: str
    """The host's `worker_root`."""
    run_folder: str
    session: str
    silence: float
    """Seconds without a heartbeat after which the worker has failed."""
    start_deadline: float
    role: str = ""
    script: bool = False
    """True if a user's script is watched."""
    quiet: bool = False
    detach: bool = False
    """True if the watch ends once the worker is under way."""
    rejoin_wait: float = 0.0
    """Seconds in which workers that start again by themselves wait for a host; 0: they do not."""
    elastic: bool = False
    """True if the other workers go on without a lost host."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], rank: int, variables: Mapping[str, Any]) -> "Target":
        """One of the action's `hosts`, with that host's variables."""
        host, root, script = from_plain(Host, arguments["hosts"][rank]), str(variables["worker_root"]), bool(arguments.get("script"))
        recovery = {} if script else arguments.get("recovery") or {}
        again = bool(recovery.get("max_restarts"))
        return cls(
            run=arguments["run"],
            host=host.name,
            rank=rank,
            local=Path(arguments["local"]),
            root=root,
            run_folder=f"{root}/{arguments['run_kind']}/{arguments['run']}",
            session=claims.session_name(arguments["run"], rank, root),
            role=host.role,
            script=script,
            quiet=bool(arguments.get("quiet")),
            detach=bool(arguments["detach"]),
            rejoin_wait=float(recovery["rejoin_wait"]) if again else 0.0,
            elastic=again and bool(recovery.get("elastic")),
            silence=worker_seconds(variables, "worker_silence"),
            start_deadline=worker_seconds(variables, "worker_start_deadline"),
        )

    @property
    def folder(self) -> str:
        """The worker's part of the run directory on its host."""
        return f"{self.run_folder}/workers/{self.host}"


class Watch:
    """Watches one worker until it ends; on the chief's host, shows progress and collects results."""

    def __init__(self, target: Target, watched: Watched, files: Worker, line: Line, progress: Progress, clock: Clock = CLOCK):
        """Take the worker, the state that all watches of a run share, its files, and what shows its records."""
        self.target, self.watched, self.files, self.line, self.progress, self.clock = target, watched, files, line, progress, clock
        self.host = target.host
        self.began = self.heard_at = self.answered_at = clock.monotonic()
        self.gone_at: float | None = None
        self.lost_at = -math.inf
        """When it last did not answer, or had no session."""
        self.was_away = False
        """True once the host has missed an answer: it may be restarting."""
        self.phase, self.step, self.note = outcome.SCRIPT_PHASE if target.script else str(Phase.STARTING), 0, ""
        self.trained, self.collect_at = False, 0.0
        self.answer = self.fault = self.complaint = ""
        """Last answer of the host in place of the worker's news; why the worker can't write its files; why nothing was collected."""
        self.phases_began: dict[str, float] = {}
        self.verdict = self._verdict("unclear", message="watching it was broken off")

    def watch(self) -> None:
        """Watch to the end; `verdict` has the result."""
        try:
            self.verdict = self._until_end()
        except Exception as error:
            Display().warning(f"{self.host}: {error}")
            self.verdict = self._verdict("unclear", message=str(error))
            self._mark_failure(self.verdict)

    def collect_as_chief(self, last: bool) -> None:
        """Fetch the run directory of the last chief; of a former one the snapshots and event files that this machine lacks."""
        if last:
            self.files.collect(self.target.local)
            return
        kept = RunFolder(self.target.local).missing_snapshots
        self.files.collect(self.target.local, "checkpoints", wanted=kept.__contains__)
        self.files.collect(self.target.local, "logs", wanted=lambda name: not (self.target.local / name).exists())

    def _until_end(self) -> Verdict:
        verdict = None
        with contextlib.closing(self.files):
            while verdict is None:
                verdict = self._once()
        self._mark_failure(verdict)
        self.line.end()
        self._collect(last=True)
        return verdict

    def _mark_failure(self, verdict: Verdict) -> None:
        if self.target.role == EVALUATOR:
            # The others go on without it.
            return
        if self.target.elastic:
            # A failure of one host is none of the others, who decide themselves, unless it ends the run.
            if verdict.exit_code in FINAL:
                self.watched.note_end()
        elif verdict.state not in (*outcome.ENDED_WELL, "unreachable"):
            self.watched.note_failure(self.host)

    def _is_chief(self) -> bool:
        """Return whether this host's worker is the chief; an elastic run gets another chief after the first was lost."""
        return self.watched.chief() == self.host if self.target.elastic else self.target.rank == 0

    def _once(self) -> Verdict | None:
        try:
            seen = self.files.watch(MOMENT_S, EVERY_S if self._is_chief() else OTHERS_EVERY_S)
        except (HostUnreachable, OSError) as error:
            self.was_away, self.lost_at = True, self.clock.monotonic()
            if isinstance(error, FollowingFailed) and str(error) != self.answer:
                self.answer = str(error)
                self.progress.show(self.host, {"kind": "warning", "text": self.answer})
            self.clock.sleep(AGAIN_S)
            return self._unreachable(f"{self.host} can't be reached: {error}")
        if seen is None:
            silence = self.clock.monotonic() - self.answered_at
            return self._unreachable(f"{self.host} can't be reached: no answer for {silence:.0f} s") or self._abandoned()
        self.answered_at = self.clock.monotonic()
        self._tell_fault(seen.fault)
        if seen.records:
            self.heard_at = self.clock.monotonic()
            self._note_phases(seen)
            self._follow(seen.records)
        if self.target.script:
            self._show(seen)
        return self._ended(seen) or self._under_way() or (self._late(seen) if seen.alive else None) or self._abandoned()

    def _tell_fault(self, fault: str) -> None:
        """Warn of a file system that became read-only, on which its worker can write no warning itself."""
        if READ_ONLY in (fault, self.fault) and fault != self.fault:
            words = of_fault(fault, self.target.folder) or "its file system takes files again"
            self.progress.show(self.host, {"kind": "warning", "text": words})
        self.fault = fault

    def _ended(self, seen: Seen) -> Verdict | None:
        if seen.exit is not None:
            if seen.more:
                # Which generation was the last, and how far it came, is in what has not been read yet.
                return None
            code = seen.exit["exit_code"]
            state = outcome.of_exit_code(code, self.target.script)
            return self._verdict(state, exit_code=code, at=seen.exit["ended_at"] - seen.ahead, lines=code != DONE)
        if not seen.alive and seen.unclear:
            return self._verdict("unclear", message=f"its session ended, and how it ended is unknown: {seen.unclear}", lines=True)
        if seen.alive:
            self.gone_at = None
            return None
        now = self.clock.monotonic()
        self.gone_at, self.lost_at = self.gone_at or now, now
        return None if now - self.gone_at < self._may_be_gone() else self._verdict("gone", message=outcome.GONE, lines=True)

    def _may_be_gone(self) -> float:
        """Seconds that a session may take to return: the others wait for a host that restarts."""
        if not self.target.rejoin_wait:
            return 0.0
        return self._may_be_away() if self.target.elastic or self.was_away or self.phase == Phase.DOWN else RETURN_S

    def _may_be_away(self) -> float:
        """Seconds that a host may take to return; none if the others have finished without it."""
        return 0.0 if self.target.elastic and self.watched.is_over() else self.target.rejoin_wait + LATER_S

    def _under_way(self) -> Verdict | None:
        established = self.trained or self.phase in (Phase.STANDING_BY, Phase.SERVING, Phase.QUEUED)
        if not (self.target.detach and established):
            return None
        if self.target.script:
            self._ask_queue()
        return self._verdict("running", message=self.note)

    def _ask_queue(self) -> None:
        """Note what a script waits for, which has no records."""
        try:
            jobs = modules.execute(self.files.action, "worker_jobs", {"root": self.target.root}).get("jobs", ())
        except AnsibleConnectionFailure:
            return
        if note := Jobs.of({self.host: jobs}).note(self.target.run, self.host):
            self.phase, self.note = str(Phase.QUEUED), note

    def _late(self, seen: Seen) -> Verdict | None:
        # A script sends no heartbeats, and may be silent for as long as it likes.
        if self.target.script or self.clock.monotonic() - self.lost_at < min(self.target.rejoin_wait, self.target.silence):
            return None
        if seen.fault == REMOVED and not self.target.rejoin_wait:
            return self._end_it("silent", of_fault(REMOVED, self.target.folder))
        if seen.fault == READ_ONLY:
            # Its heartbeats are files.
            return None
        # Its work is done, but its heart no longer beats while Python shuts down, which reads from a disk that may be slow.
        silence = self.target.silence * (SHUTDOWN if self.phase == Phase.ENDED else 1) + (LATER_S if self.target.rejoin_wait else 0.0)
        if seen.heard is not None and seen.heard > silence and self.clock.monotonic() - self.heard_at > min(silence, 10):
            return self._end_it("silent", f"{silent(seen.heard)} while {self.phase} (limit {silence:.0f} s)")
        deadline = self.target.start_deadline + 15
        if self.phase in WAITING and self.clock.monotonic() - self.heard_at > deadline:
            return self._end_it("silent", f"still {self.phase} after {deadline:.0f} s")
        return None

    def _unreachable(self, message: str) -> Verdict | None:
        # Never because another failed: that one probably failed because it lost this host, and nothing can be ended here.
        limit = max(self.target.silence, self._may_be_away() if self.target.rejoin_wait else 0.0)
        silent = self.clock.monotonic() - self.answered_at > limit
        return self._verdict("unreachable", message=message) if silent else None

    def _abandoned(self) -> Verdict | None:
        if self.clock.monotonic() - self.answered_at > ANSWERS_S:
            # It probably is what the others failed of: it counts as unreachable in due time.
            return None
        if self.target.elastic and self.target.rank >= self.watched.workers and self.watched.is_over(OTHERS_GRACE_S):
            return self._end_it("ended", "the run has ended", by_us=True)
        age = self.watched.since_failure(self.host)
        if age is not None and age > (SCRIPT_GRACE_S if self.target.script else OTHERS_GRACE_S):
            return self._end_it("ended", "ended because another worker failed", by_us=True)
        return None

    def _end_it(self, state: str, message: str, by_us: bool = False) -> Verdict:
        verdict = self._verdict(state, message=message, lines=True, ended_by_us=by_us)
        arguments = {"name": self.target.session, "state": "absent", "grace": 2}
        try:
            modules.execute(self.files.action, "tmux_session", arguments)
        except AnsibleConnectionFailure as error:
            return replace(verdict, message=f"{message}; its session could not be ended: {error}")
        return verdict

    def _verdict(self, state: str, lines: bool = False, **more: Any) -> Verdict:
        progress = {"phase": self.phase, "step": self.step, "at": self._happened(state), "phases_began": self.phases_began, **more}
        return Verdict(self.host, self.target.rank, state, last_lines=self._last_lines() if lines else None, **progress)

    def _last_lines(self) -> list[str]:
        try:
            return self.files.last_lines()
        except HostUnreachable as error:
            return [str(error)]

    def _happened(self, state: str) -> float:
        """When a worker reached a state; one that fell silent counts from when it was last heard."""
        lost = state in ("silent", "gone", "unreachable")
        return self.clock.time() - (self.clock.monotonic() - self.heard_at if lost else 0.0)

    def _follow(self, news: list[dict[str, Any]]) -> None:
        self.phase, self.step = worker_files.doing(news, self.phase, self.step)
        self.note = worker_files.note(news, self.note)
        self.trained = self.trained or any(record["kind"] == "steps" for record in news)
        if self.target.elastic and (generation := worker_files.newest_generation(news)):
            marks = project.PRIVATE / "watch" / self.target.run
            self.watched.generations[self.host] = generations.note(marks, self.host, generation)
        chief = self._is_chief()
        for record in news:
            if chief or record["kind"] in FROM_ALL:
                self.progress.show(self.host, record)
            if chief:
                kept_choices.keep_of(self.target.local, record)
        if chief:
            self._collect()

    def _show(self, seen: Seen) -> None:
        """Show what a script printed on the chief, and keep its files."""
        self.trained = self.trained or (seen.alive and self.clock.monotonic() - self.began > ESTABLISHED_S)
        if seen.lines:
            self.heard_at = self.clock.monotonic()
        if self.target.rank == 0:
            for line in () if self.target.quiet else seen.lines:
                self.line.print(f"{self.host}: {line}")
            self._collect()

    def _note_phases(self, seen: Seen) -> None:
        """Record when each phase first began, by this machine's clock; what ended and trains again has not ended."""
        for record in seen.records:
            if record["kind"] == "phase" and record["phase"] in outcome.TIMED:
                if record["phase"] == Phase.TRAINING:
                    self.phases_began.pop(Phase.ENDED, None)
                self.phases_began.setdefault(record["phase"], float(record["t"]) - seen.ahead)

    def _collect(self, last: bool = False) -> None:
        """Fetch the chief's whole run directory, at the end also the others' own folders.

        A trial is left alone while it is measured, and its weights are not fetched.
        """
        trial, begun = not RunFolder(self.target.local).is_users, self.clock.monotonic()
        if not last and (trial or begun < self.collect_at):
            return
        try:
            if restored := "" if trial else under_way.restore(self.target.local.name):
                self.line.print(f"[WARNING] {restored}")
            without = ("checkpoints", "state", "memory") if trial else ()
            self.files.collect(self.target.local, None if self._is_chief() else f"workers/{self.host}", without=without)
        except (HostUnreachable, OSError) as error:
            if str(error) != self.complaint:
                self.line.print(f"[WARNING] {self.host}: results could not be collected: {error}")
            self.complaint = str(error)
        ended = self.clock.monotonic()
        self.collect_at = ended + max(COLLECT_S, (ended - begun) / COLLECTING)
