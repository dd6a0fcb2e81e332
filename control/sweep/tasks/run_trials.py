"""Run the missing trials of a sweep, several at once if hosts allow; after any interruption, the same command continues."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from control.campaign import timings
from control.campaign.store import SUMMARY, Row, UnderWay, alone, refuse_other, side_by_side
from control.common import command_line, host_names, text
from control.common.child_playbooks import Interrupted, heeding_signals
from control.common.operator_variables import boolean
from control.common.progress_line import Line
from control.common.task import Task
from control.runs.results.step_model import ring, slowest
from control.sweep.scaling.timing_trials import TimingBench
from control.sweep.scaling.trials import Bench, PlannedTrial
from control.sweep.settings import trial_settings
from control.sweep.settings.settings_trials import SettingsBench
from trainer.common.errors import LockstepError
from trainer.common.files import read_json, write_json

OTHER_LINKS = 1.5
"""Largest ratio of two bandwidths that may belong to the same links."""


def run_trials(task: Task) -> dict[str, Any]:
    """Prepare, then run the remaining trials.

    Keeps the results row by row; a trial that fails is recorded as failed, and the others go on.
    """
    record = task.arguments["sweep"]
    line = Line(Display(), command_line.terminal(), every=30)
    variables, options = command_line.inventory_overrides("sweep"), task.arguments["options"]
    bench: Bench
    with heeding_signals() as ended:
        if trial_settings.are_of(Path(record["folder"])):
            bench = SettingsBench(record, variables, ended)
        else:
            _note_links(Path(record["folder"]) / SUMMARY, task.arguments["network"])
            remeasure = boolean("remeasure", options.get("remeasure", False))
            bench = TimingBench(record, variables, ended, options.get("meter"), remeasure)
        with alone():
            _run_all(bench, line)
    return {"changed": True}


def _run_all(bench: Bench, line: Line) -> None:
    """Run the trials of a bench; if the command is ended, leave nothing on the hosts (LockstepError)."""
    try:
        bench.clear_leftover()
        bench.prepare(line)
        Session(bench, line).run()
    except Interrupted:
        replace(bench, ended=lambda: False).clear_leftover()
        again = "the same command continues, and measures nothing twice"
        raise LockstepError(f"sweep={bench.folder.name} was interrupted; its measured trials are kept: {again}") from None
    finally:
        line.end()


class Session:
    """The trials that one command runs, and their messages."""

    def __init__(self, bench: Bench, line: Line):
        """Take a bench; show progress on this line."""
        self._bench, self._line, self._trials, self._pace = bench, line, bench.trials, bench.pace()
        self._numbers = {trial: number for number, trial in enumerate(self._trials, 1)}
        self._waiting, self._tried = list(self._trials), Counter[PlannedTrial]()

    def run(self) -> None:
        """Run all trials, and keep each row as soon as it exists."""
        side_by_side(self._trials, self._bench.slots, self._one, self._done, self._show)

    def _one(self, trial: PlannedTrial, hosts: list[str], given_up: Callable[[], bool]) -> Row:
        return self._bench.measure(trial, hosts, lambda: self._bench.ended() or given_up())

    def _done(self, job: UnderWay[PlannedTrial, list[str]], row: Row) -> bool:
        trial, head = job.trial, f"trial {self._numbers[job.trial]} of {len(self._trials)}"
        self._tried[trial] += 1
        if not row.measured and self._tried[trial] < self._bench.attempts:
            output = "\n".join(f"  {line}" for line in self._bench.last_lines(trial.run))
            self._line.print(f"{head} failed and is tried once more:\n{output}")
            return True
        self._bench.put(row)
        self._waiting.remove(trial)
        if row.measured:
            self._pace.add(trial.trial, job.elapsed)
        left = (self._left(self._waiting) or 0.0) / len(self._bench.slots)
        self._line.print(f"{head}: {trial.label}: {self._bench.outcome(row)}{f'  {text.duration(left)} left' if left else ''}")
        return False

    def _left(self, trials: Sequence[PlannedTrial]) -> float | None:
        return self._pace.left(trial.trial for trial in trials)

    def _show(self, jobs: Sequence[UnderWay[PlannedTrial, list[str]]]) -> None:
        running = {job.trial: job.elapsed for job in jobs}
        shown = [(self._numbers[trial], trial.label, elapsed, self._pace.expected(trial.trial)) for trial, elapsed in running.items()]
        later = self._left([trial for trial in self._waiting if trial not in running])
        self._line.update(_under_way(shown, len(self._trials), later, len(self._bench.slots)))


def _under_way(jobs: Sequence[tuple[int, str, float, float | None]], of: int, later: float | None, at_once: int) -> str:
    """Line on the running trials: number, label and elapsed time of each, and the time left for all.

    Args:
        jobs: number, label, elapsed and expected seconds of each trial that runs.
        of: number of trials.
        later: expected seconds of all waiting trials together.
        at_once: number of trials that may run at once.
    """
    each = "; ".join(f"trial {number} of {of}: {label}, {text.duration(elapsed)}" for number, label, elapsed, _ in jobs)
    known = [max(0.0, expected - elapsed) for _, _, elapsed, expected in jobs if expected is not None]
    left = f"  about {text.duration((sum(known) + later) / at_once)} left" if later is not None and len(known) == len(jobs) else ""
    return f"{each}{left}"


def _note_links(path: Path, network: dict[str, Any]) -> None:
    """Record the bandwidth of the slowest link between the hosts, which has just been measured."""
    record = dict(read_json(path))
    names = [name for name in host_names.label_names(record["hosts"]) if name in network]
    now, before = slowest(ring(names), network), record.get("mbit_s")
    if now is None:
        return
    measured = timings.any_measured(path.with_name(timings.FILE))
    if before and measured and not 1 / OTHER_LINKS < now / before < OTHER_LINKS:
        refuse_other("sweep", path.parent.name, [f"slowest link ({before:,.0f} Mbit/s, now {now:,.0f})"])
    write_json(path, {**record, "mbit_s": round(now, 1)})
