"""Measure what a sweep lacks, one trial after another; whatever ends it, the same command continues."""

from dataclasses import replace
from typing import Any

from ansible.utils.display import Display

from plugins.shared import control
from plugins.shared.children import Interrupted, heeding_signals
from plugins.shared.trials import Bench, alone
from trainer import operator_variables
from trainer.analysis import sweep_text, timings
from trainer.analysis.progress import Line
from trainer.analysis.sweep import Pace, run_name
from trainer.analysis.timings import Timing, Trial
from trainer.errors import LockstepError


class ActionModule(control.ControlAction):
    """Writes timings.csv row by row; a trial that fails is tried once more, then recorded as failed."""

    def act(self) -> dict[str, Any]:
        """Warm up, then measure."""
        found = self.arguments["sweep"]
        self.trials = [Trial(**one) for one in found["trials"]]
        self.line = Line(Display(), control.terminal(), every=30)
        own = operator_variables.COMMANDS["sweep"]
        variables = {name: value for name, value in control.extra_variables().items() if name not in own}
        with heeding_signals() as ended:
            bench = Bench(found, variables, ended, self.arguments["options"].get("meter"))
            with alone(bench.folder):
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
        pace = Pace(timings.read(bench.folder / "timings.csv"))
        for number, trial in enumerate(self.trials, 1):
            row = self._trial(bench, pace, number, trial)
            bench.put(row)
            self.line.print(sweep_text.measured(number, len(self.trials), row, pace, self.trials[number:]))

    def _trial(self, bench: Bench, pace: Pace, number: int, trial: Trial) -> Timing:
        seconds = 0.0

        def show(elapsed: float) -> None:
            nonlocal seconds
            seconds = elapsed
            self.line.update(sweep_text.under_way(number, len(self.trials), trial, elapsed, pace, self.trials[number:]))

        row = bench.measure(trial, show)
        if not row.measured:
            said = bench.last_lines(run_name(bench.folder.name, trial))
            self.line.print(f"trial {number} of {len(self.trials)} failed and is tried once more:\n{said}")
            row = bench.measure(trial, show)
        if row.measured:
            pace.add(trial.workers, seconds)
        return row
