"""Trials of a sweep over settings: trainings side by side on disjoint hosts, judged by the deciding metric."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.campaign.store import Pace
from control.common import configurations, text
from control.common.progress_line import Line
from control.runs.results import outcome
from control.runs.results.outcome import Verdict
from control.runs.results.summary import Summary
from control.sweep.scaling import design
from control.sweep.scaling.trials import Bench, PlannedTrial
from control.sweep.settings.trial_settings import CONFIGS, DIVERGED, FAILED, FILE, STORE, SUCCEEDED, Result, Settings
from trainer.common import errors
from trainer.common.errors import LockstepError
from trainer.common.safe_text import printable
from trainer.rundir.best_epoch import monitor
from trainer.rundir.layout import part_of
from trainer.rundir.metrics_log import WORKER_LOG
from trainer.rundir.schemas import read_history

REASON = 300
"""Most characters of a reason."""
NUMBERS = {
    "epochs": "epochs_done",
    "seconds_end_to_end": "seconds_end_to_end",
    "seconds_training": "seconds_training",
    "images_per_s": "images_per_s",
}
"""Columns of trials.csv that are entries of a trial's summary.json."""


@dataclass
class SettingsBench(Bench):
    """Trains each trial on a separate group of hosts."""

    @property
    def trials(self) -> list[PlannedTrial]:
        """Remaining runs, in order: a trial is identified by the name of its run."""
        return [PlannedTrial(run, run, self._values(run).label) for run in self.record["trials"]]

    @property
    def slots(self) -> list[list[str]]:
        """The groups of hosts."""
        return [list(group) for group in self.record["groups"]]

    def prepare(self, line: Line) -> None:  # noqa: ARG002 - takes no time
        """Remove the run with which the hosts were inspected."""
        shutil.rmtree(self.local(f"{self.record['name']}.{design.WARM_UP}"), ignore_errors=True)

    def measure(self, planned: PlannedTrial, hosts: Sequence[str], ended: Callable[[], bool]) -> Result:
        """Train; return the row for trials.csv."""
        run, path = planned.run, self._config(planned.run)
        summary = self.launch(run, hosts, {"config": str(path)}, ended)
        asked = configurations.load(path)["train"]["monitor"]
        return _row(run, self._values(run), summary, self.local(run), asked, hosts, self.last_lines(run, 1))

    def _config(self, run: str) -> Path:
        return self.folder / CONFIGS / f"{run}.yml"

    def _values(self, run: str) -> Settings:
        """A trial's settings."""
        config = configurations.build(configurations.load(self._config(run)))
        return Settings.of(config, self.record["varied"])

    def put(self, row: Result) -> None:
        """Keep a row in trials.csv."""
        STORE.put(self.folder / FILE, row)

    def pace(self) -> Pace:
        """Estimator of trial durations, equal for all trials."""
        return design.pace(STORE.read(self.folder / FILE))

    def outcome(self, row: Result) -> str:
        """Text on the best epoch's metric, time and speed, or on the failure."""
        if row.state != SUCCEEDED:
            return f"{row.state}: {row.reason}"
        speed = f", {row.images_per_s:,.0f} {self.record['noun']}/s" if row.images_per_s is not None else ""
        return f"{row.metric_words}, {text.duration(row.seconds_end_to_end or 0.0)}{speed}"


def _row(
    run: str, values: Settings, summary: Summary, folder: Path, asked: str | None, hosts: Sequence[str], last: Sequence[str]
) -> Result:
    """The row of a trial.

    Args:
        run: the run's name.
        values: the trial's settings.
        summary: the run's end, with the state that the trial's command gave it.
        folder: the run directory.
        asked: `train.monitor`.
        hosts: names of the hosts that trained.
        last: the end of the command's output.
    """
    failure = summary.failure
    diverged = failure is not None and failure.exit_code == errors.DIVERGED
    succeeded = summary.state == SUCCEEDED
    state = SUCCEEDED if succeeded else DIVERGED if diverged else FAILED
    numbers: dict[str, Any] = dict.fromkeys(NUMBERS) | dict.fromkeys(("value", "epoch"))
    if state != FAILED:
        numbers |= {name: getattr(summary, key) for name, key in NUMBERS.items()} | _best(folder, asked)
    why = _reason(failure, folder) or (last[-1].strip() if last else "its command failed and printed nothing")
    return Result(
        **{"run": run, "state": state, "metric": "", **numbers},
        hosts=" ".join(hosts),
        settings=json.dumps(values, ensure_ascii=False),
        reason="" if succeeded else printable(why, REASON),
    )


def _best(folder: Path, asked: str | None) -> dict[str, Any]:
    """The deciding metric, its value in the best epoch, and that epoch; empty before the first epoch, or if the file is invalid."""
    try:
        rows = read_history(folder / "history.csv")
    except LockstepError:
        return {}
    if not rows:
        return {}
    decides = monitor(rows[0], asked)
    best = decides.best(rows)
    return {"metric": decides.metric, "value": best.get(decides.metric), "epoch": best["epoch"]}


def _reason(failure: Verdict | None, folder: Path) -> str:
    """The failed host, with its worker's last message or its end; empty if no worker failed."""
    if failure is None:
        return ""
    code, log = failure.exit_code, part_of(folder, failure.host) / WORKER_LOG
    ended = f"exit code {code}{outcome.signal_name(code)}" if code is not None else failure.state
    refusal = errors.refusal(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else ""
    return f"{failure.host}: {failure.message or refusal.partition(chr(10))[0] or ended}"
