"""Watch one worker until it ends; on the chief's host, show progress and collect results."""

import contextlib
import dataclasses
import math
import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure

from control.common import project
from control.common.progress_line import Line
from control.remote import modules, worker_files
from control.remote.follow import HostUnreachable
from control.remote.follow_program import BEAT_S, READ_ONLY, REMOVED
from control.remote.worker_access import Seen, Worker, mark_failed, of_fault, since_failure
from control.runs.launch import launches, under_way
from control.runs.launch.waiting_runs import Jobs
from control.runs.planning import kept_choices
from control.runs.results import generations, outcome
from control.runs.results.outcome import Verdict
from control.runs.show.progress import Progress
from plugins.shared.base_action import Action
from trainer.common.clock import CLOCK, Clock
from trainer.common.errors import DONE
from trainer.data.spec import noun
from trainer.parameter_server.roles import EVALUATOR
from trainer.rundir import layout
from trainer.rundir.launch_record import LaunchRecord
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


class ActionModule(Action):
    """Never fails itself: returns `verdict`, from which `conclude_run` derives the run's outcome."""

    clock: Clock = CLOCK
    script = False
    """True if a user's script is watched."""
    rejoin_wait = 0.0
    """Seconds in which workers that start again by themselves wait for a host; 0: they do not."""
    elastic = False
    """True if the other workers go on without a lost host."""
    was_away = False
    """True once the host has missed an answer: it may be restarting."""
    note = ""
    """Note on the phase of the worker."""
    lost_at = -math.inf
    """When it last did not answer, or had no session."""
    fault = ""
    """Cause that keeps the worker from writing its files; empty if none."""

    def act(self, **arguments: Any) -> dict[str, Any]:
        """Watch until the worker is done, failed, silent or unreachable (or under way, if detached)."""
        self.arguments = arguments
        self.host, self.rank = arguments["host"], int(arguments["rank"])
        self.local, self.quiet = Path(arguments["local"]), bool(arguments.get("quiet"))
        self.script = bool(arguments.get("script"))
        self.worker = Worker(self, arguments["run_folder"], arguments["folder"], arguments["session"], self.script)
        self.marks = project.PRIVATE / "watch" / arguments["run"]
        self.line = Line(every=1e9)
        self.worker.say = self.line.print if self.rank == 0 else None
        called = noun(LaunchRecord.read(self.local).dataset.get("spec"))
        self.progress = Progress(
            self.line, arguments["counts"], self.quiet, arguments["hosts"], called, layout.snapshots_policy(self.local)[1]
        )
        self.began = self.heard_at = self.answered_at = self.clock.monotonic()
        self.parent = os.getppid()
        self.phase, self.step, self.trained, self.collect_at = outcome.SCRIPT_PHASE if self.script else str(Phase.STARTING), 0, False, 0.0
        self.complaint = ""
        self.gone_at: float | None = None
        recovery = arguments.get("recovery") or {}
        if recovery.get("max_restarts") and not self.script:
            self.rejoin_wait, self.elastic = float(recovery["rejoin_wait"]), bool(recovery.get("elastic"))
        self.workers = int(arguments["counts"]["workers"]) if self.elastic else len(arguments["hosts"])
        self.phases_began: dict[str, float] = {}
        verdict = self._until_end().to_dict()
        return {"launched_at": launches.launched_at(arguments["local"]), "verdict": verdict, "printed": self.progress.printed}

    def _until_end(self) -> Verdict:
        verdict = None
        with contextlib.closing(self.worker):
            while verdict is None:
                verdict = self._once()
                if verdict is None and os.getppid() != self.parent:
                    # The command was killed: the next watcher must not find a second one that writes.
                    return self._verdict("running")
        self._mark_failure(verdict)
        self.line.end()
        self._collect(last=True)
        return verdict

    def _mark_failure(self, verdict: Verdict) -> None:
        if self.arguments.get("role") == EVALUATOR:
            # The others go on without it.
            return
        # Without a mark the others only take longer to notice.
        with contextlib.suppress(OSError):
            if self.elastic:
                # A failure of one host is none of the others, who decide themselves, unless it ends the run.
                if verdict.exit_code in FINAL:
                    generations.note_end(self.marks)
            elif verdict.state not in (*outcome.ENDED_WELL, "unreachable"):
                mark_failed(self.marks, self.host)

    def _is_chief(self) -> bool:
        """Return whether this host's worker is the chief; an elastic run gets another chief after the first was lost."""
        return generations.chief(self.marks, self.arguments["hosts"], self.workers) == self.host if self.elastic else self.rank == 0

    def _once(self) -> Verdict | None:
        try:
            seen = self.worker.watch(MOMENT_S, EVERY_S if self._is_chief() else OTHERS_EVERY_S)
        except (HostUnreachable, OSError) as error:
            self.was_away, self.lost_at = True, self.clock.monotonic()
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
        if self.script:
            self._show(seen)
        return self._ended(seen) or self._under_way() or (self._late(seen) if seen.alive else None) or self._abandoned()

    def _tell_fault(self, fault: str) -> None:
        """Warn of a file system that became read-only, on which its worker can write no warning itself."""
        if READ_ONLY in (fault, self.fault) and fault != self.fault:
            words = of_fault(fault, self.arguments["folder"]) or "its file system takes files again"
            self.progress.show(self.host, {"kind": "warning", "text": words})
        self.fault = fault

    def _ended(self, seen: Seen) -> Verdict | None:
        if seen.exit is not None:
            if seen.more:
                # Which generation was the last, and how far it came, is in what has not been read yet.
                return None
            code = seen.exit["exit_code"]
            state = outcome.of_exit_code(code, self.script)
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
        if not self.rejoin_wait:
            return 0.0
        return self._may_be_away() if self.elastic or self.was_away or self.phase == Phase.DOWN else RETURN_S

    def _may_be_away(self) -> float:
        """Seconds that a host may take to return; none if the others have finished without it."""
        return 0.0 if self.elastic and generations.is_over(self.marks) else self.rejoin_wait + LATER_S

    def _under_way(self) -> Verdict | None:
        established = self.trained or self.phase in (Phase.STANDING_BY, Phase.SERVING, Phase.QUEUED)
        if not (self.arguments["detach"] and established):
            return None
        if self.script and self.arguments.get("root"):
            self._ask_queue()
        return self._verdict("running", message=self.note)

    def _ask_queue(self) -> None:
        """Note what a script waits for, which has no records."""
        try:
            jobs = modules.execute(self, "worker_jobs", {"root": self.arguments["root"]}).get("jobs", ())
        except AnsibleConnectionFailure:
            return
        if note := Jobs.of({self.host: jobs}).note(self.arguments["run"], self.host):
            self.phase, self.note = str(Phase.QUEUED), note

    def _late(self, seen: Seen) -> Verdict | None:
        # A script sends no heartbeats, and may be silent for as long as it likes.
        if self.script or self.clock.monotonic() - self.lost_at < min(self.rejoin_wait, float(self.arguments["silence"])):
            return None
        if seen.fault == REMOVED and not self.rejoin_wait:
            return self._end_it("silent", of_fault(REMOVED, self.arguments["folder"]))
        if seen.fault == READ_ONLY:
            # Its heartbeats are files.
            return None
        # Its work is done, but its heart no longer beats while Python shuts down, which reads from a disk that may be slow.
        silence = float(self.arguments["silence"]) * (SHUTDOWN if self.phase == Phase.ENDED else 1) + (LATER_S if self.rejoin_wait else 0.0)
        if seen.heard is not None and seen.heard > silence and self.clock.monotonic() - self.heard_at > min(silence, 10):
            return self._end_it("silent", f"{silent(seen.heard)} while {self.phase} (limit {silence:.0f} s)")
        deadline = float(self.arguments["start_deadline"]) + 15
        if self.phase in WAITING and self.clock.monotonic() - self.heard_at > deadline:
            return self._end_it("silent", f"still {self.phase} after {deadline:.0f} s")
        return None

    def _unreachable(self, message: str) -> Verdict | None:
        # Never because another failed: that one probably failed because it lost this host, and nothing can be ended here.
        limit = max(float(self.arguments["silence"]), self._may_be_away() if self.rejoin_wait else 0.0)
        silent = self.clock.monotonic() - self.answered_at > limit
        return self._verdict("unreachable", message=message) if silent else None

    def _abandoned(self) -> Verdict | None:
        if self.clock.monotonic() - self.answered_at > ANSWERS_S:
            # It probably is what the others failed of: it counts as unreachable in due time.
            return None
        if self.elastic and self.rank >= self.workers and generations.is_over(self.marks, OTHERS_GRACE_S):
            return self._end_it("ended", "the run has ended", by_us=True)
        age = since_failure(self.marks, self.host)
        if age is not None and age > (SCRIPT_GRACE_S if self.script else OTHERS_GRACE_S):
            return self._end_it("ended", "ended because another worker failed", by_us=True)
        return None

    def _end_it(self, state: str, message: str, by_us: bool = False) -> Verdict:
        verdict = self._verdict(state, message=message, lines=True, ended_by_us=by_us)
        arguments = {"name": self.arguments["session"], "state": "absent", "grace": 2}
        try:
            modules.execute(self, "tmux_session", arguments)
        except AnsibleConnectionFailure as error:
            return dataclasses.replace(verdict, message=f"{message}; its session could not be ended: {error}")
        return verdict

    def _verdict(self, state: str, lines: bool = False, **more: Any) -> Verdict:
        progress = {"phase": self.phase, "step": self.step, "at": self._happened(state), "phases_began": self.phases_began, **more}
        return Verdict(self.host, self.rank, state, last_lines=self._last_lines() if lines else None, **progress)

    def _last_lines(self) -> list[str]:
        try:
            return self.worker.last_lines()
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
        if self.elastic and (generation := worker_files.newest_generation(news)):
            generations.note(self.marks, self.host, generation)
        chief = self._is_chief()
        for record in news:
            if chief or record["kind"] in FROM_ALL:
                self.progress.show(self.host, record)
            if chief:
                kept_choices.keep_of(self.local, record)
        if chief:
            self._collect()

    def _show(self, seen: Seen) -> None:
        """Show what a script printed on the chief, and keep its files."""
        self.trained = self.trained or (seen.alive and self.clock.monotonic() - self.began > ESTABLISHED_S)
        if seen.lines:
            self.heard_at = self.clock.monotonic()
        if self.rank == 0:
            for line in () if self.quiet else seen.lines:
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
        trial, begun = not project.is_users(self.local), self.clock.monotonic()
        if not last and (trial or begun < self.collect_at):
            return
        try:
            if restored := "" if trial else under_way.restore(self.local.name):
                self.line.print(f"[WARNING] {restored}")
            without = ("checkpoints", "state", "memory") if trial else ()
            self.worker.collect(self.local, None if self._is_chief() else f"workers/{self.host}", without=without)
        except (HostUnreachable, OSError) as error:
            if str(error) != self.complaint:
                self.line.print(f"[WARNING] {self.host}: results could not be collected: {error}")
            self.complaint = str(error)
        ended = self.clock.monotonic()
        self.collect_at = ended + max(COLLECT_S, (ended - begun) / COLLECTING)
