"""Measure the missing trials of a sweep, one after another; whatever ends it, the same command continues."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from control import command_line
from control.campaign import SUMMARY, Pace, alone, refuse_other
from control.children import Interrupted, heeding_signals
from control.doctor.step_model import ring, slowest
from control.operator_variables import boolean
from control.progress import Line
from control.runs import cluster
from control.sweep import sweep, sweep_text, timings
from control.sweep.sweep import run_name
from control.sweep.timings import Timing, Trial
from control.sweep.trials import Bench
from control.task import Task
from trainer.errors import LockstepError
from trainer.files import read_json, write_json

OTHER_LINKS = 1.5
"""Bandwidths that differ by more than this factor belong to different links."""


class RunTrials(Task):
    """Writes timings.csv row by row; a trial that fails is tried once more, then recorded as failed."""

    def act(self) -> dict[str, Any]:
        """Warm up, then measure."""
        record = self.arguments["sweep"]
        self.trials = [Trial(**one) for one in record["trials"]]
        self.line = Line(Display(), command_line.terminal(), every=30)
        variables = command_line.inventory_overrides("sweep")
        note_links(Path(record["folder"]) / SUMMARY, self.arguments["network"])
        with heeding_signals() as ended:
            options = self.arguments["options"]
            bench = Bench(record, variables, ended, options.get("meter"), boolean("remeasure", options.get("remeasure", False)))
            with alone():
                self._all(bench)
        return {"changed": True}

    def _all(self, bench: Bench) -> None:
        try:
            bench.clear_leftover()
            largest = max(trial.workers for trial in self.trials)
            bench.warm_up(largest, lambda seconds: self.line.update(f"warm-up on {largest} workers, {seconds:.0f} s"))
            self._measure(bench)
        except Interrupted:
            replace(bench, ended=lambda: False).clear_leftover()
            again = "the same command continues, and measures nothing twice"
            raise LockstepError(f"sweep={bench.folder.name} was interrupted; its measured trials are kept: {again}") from None
        finally:
            self.line.end()

    def _measure(self, bench: Bench) -> None:
        pace = sweep.pace(timings.read(bench.folder / timings.FILE))
        for number, trial in enumerate(self.trials, 1):
            row = self._trial(bench, pace, number, trial)
            timings.put(bench.folder / timings.FILE, row)
            self.line.print(sweep_text.measured(number, len(self.trials), row, pace, self.trials[number:]))

    def _trial(self, bench: Bench, pace: Pace, number: int, trial: Trial) -> Timing:
        seconds = 0.0

        def show(elapsed: float) -> None:
            nonlocal seconds
            seconds = elapsed
            self.line.update(sweep_text.under_way(number, len(self.trials), trial, elapsed, pace, self.trials[number:]))

        row = bench.measure(trial, show)
        if not row.measured:
            output = bench.last_lines(run_name(bench.folder.name, trial))
            self.line.print(f"trial {number} of {len(self.trials)} failed and is tried once more:\n{output}")
            row = bench.measure(trial, show)
        if row.measured:
            pace.add(trial, seconds)
        return row


def note_links(path: Path, network: dict[str, Any]) -> None:
    """Record the bandwidth of the slowest link between the hosts; the look at the hosts has just measured it."""
    record = dict(read_json(path))
    names = [name for name in cluster.label_names(record["hosts"]) if name in network]
    now, before = slowest(ring(names), network), record.get("mbit_s")
    if now is None:
        return
    measured = timings.any_measured(path.with_name(timings.FILE))
    if before and measured and not 1 / OTHER_LINKS < now / before < OTHER_LINKS:
        refuse_other("sweep", path.parent.name, [f"slowest link ({before:,.0f} Mbit/s, now {now:,.0f})"])
    write_json(path, {**record, "mbit_s": round(now, 1)})
