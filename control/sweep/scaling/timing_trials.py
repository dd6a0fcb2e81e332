"""Trials that measure the duration of a training, one at a time: simultaneous trials would slow each other."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ansible.utils.display import Display

from control.campaign import timings
from control.campaign.store import SUMMARY, Pace
from control.campaign.timings import FAILED, STRONG, SUCCEEDED, Timing, Trial
from control.common import host_names
from control.common.progress_line import Line
from control.remote.worker_files import chief_records
from control.runs.results.summary import Summary
from control.sweep.scaling import design, forecast
from control.sweep.scaling.forecast import Speed
from control.sweep.scaling.meter import Sample, joules, metering
from control.sweep.scaling.trials import Bench, PlannedTrial
from trainer.common.errors import LockstepError
from trainer.common.files import read_json, write_json
from trainer.rundir.launch_record import LaunchRecord

ALONE = "recovery.max_restarts=0,recovery.elastic=false,train.patience=null"
"""Settings for a valid measurement: the training must neither start twice nor end early."""
MEASURED = ("seconds_end_to_end", "seconds_training", "images_per_s")


@dataclass
class TimingBench(Bench):
    """Measures trials on the first hosts of the inventory."""

    meter: str | None = None
    """Address of a metering plug for all hosts."""
    remeasure: bool = False
    """True if the warm-up measures the reduction again."""

    attempts: ClassVar[int] = 2

    @property
    def trials(self) -> list[PlannedTrial]:
        """Trials left to measure, in order."""
        trials = [Trial(**one) for one in self.record["trials"]]
        return [PlannedTrial(one, one.run_name(self.record["name"]), one.label) for one in trials]

    @property
    def slots(self) -> list[list[str]]:
        """A single slot with all hosts; a trial uses the first of them."""
        return [host_names.label_names(self.record["hosts"])]

    def prepare(self, line: Line) -> None:
        """Run a short, unrecorded trial.

        It fills every host's caches, chooses the reduction for all trials, and shows the trials' expected duration.
        """
        trials = [planned.trial for planned in self.trials]
        workers = max(trial.workers for trial in trials)
        run = f"{self.record['name']}.{design.WARM_UP}"
        overrides = "train.global_batch=null,train.steps_per_epoch=20"
        options = {"config": self._config(), "epochs": 1, "set": overrides, "remeasure": self.remeasure}

        def show(seconds: float) -> None:
            line.update(f"warm-up on {workers} workers, {seconds:.0f} s")

        summary = self.launch(run, self.slots[0][:workers], options, self.ended, show)
        if summary.state != SUCCEEDED:
            last = "\n".join(f"  {one}" for one in self.last_lines(run))
            raise LockstepError(f"the warm-up failed, and nothing was measured:\n{last}")
        speed = Speed.of_warm_up(summary, chief_records(self.local(run)), host_names.on_one_machine(self.record["hosts"]))
        self._keep(summary, speed)
        line.print(forecast.warmed_up(trials, speed, self.record["train_images"], self.record["called"]))
        shutil.rmtree(self.local(run))

    def _config(self) -> str:
        return str(self.folder / "config.yml")

    def _keep(self, summary: Summary, speed: Speed | None) -> None:
        """Keep the warm-up's findings in the sweep's summary.json.

        A sweep has a single reduction: otherwise `auto` may choose by the number of workers, and no model of a step fits both methods.
        """
        record = dict(read_json(self.folder / SUMMARY))
        if "reduction" not in record:
            chosen = summary.reduction
            how = {name: chosen[name] for name in ("sent_bytes", "transport", "sums") if name in chosen}
            record |= {"reduction": chosen["name"], **how}
        write_json(self.folder / SUMMARY, record | ({"speed": asdict(speed)} if speed else {}))

    def measure(self, planned: PlannedTrial, hosts: Sequence[str], ended: Callable[[], bool]) -> Timing:
        """Run a trial; returns the row for timings.csv, without times if it failed."""
        trial: Trial = planned.trial
        run, workers = planned.run, hosts[: trial.workers]
        batch = self.record["global_batch"] if trial.scaling == STRONG else "null"
        kept = read_json(self.folder / SUMMARY)["reduction"]
        overrides = f"train.global_batch={batch},checkpoint.every_steps={trial.checkpoint_every or 'null'},reduction.name={kept},{ALONE}"
        with metering(self.meter) as samples:
            summary = self.launch(run, workers, {"config": self._config(), "epochs": trial.epochs, "set": overrides}, ended)
        self._energy(run, summary, samples)
        succeeded = summary.state == SUCCEEDED
        measured: dict[str, Any] = {key: getattr(summary, key) if succeeded else None for key in MEASURED}
        if succeeded:
            calls = [record for record in chief_records(self.local(run)) if record["kind"] == "steps"]
            measured["images_per_s"] = timings.typical_rate(calls) or measured["images_per_s"]
        return Timing(**asdict(trial), **measured, state=SUCCEEDED if succeeded else FAILED, hosts=" ".join(workers))

    def _energy(self, run: str, summary: Summary, samples: list[Sample]) -> None:
        if self.meter and summary.state == SUCCEEDED:
            begin = LaunchRecord.read(self.local(run)).launched_at
            try:
                used = joules(samples, begin, begin + (summary.seconds_end_to_end or 0.0))
            except LockstepError as error:
                # The trial itself was measured.
                Display().warning(f"{run}: {error}; its energy is not recorded")
                return
            write_json(self.local(run) / "energy.json", {"joules": round(used, 1), "samples": len(samples)})

    def put(self, row: Timing) -> None:
        """Keep a row in timings.csv."""
        timings.put(self.folder / timings.FILE, row)

    def pace(self) -> Pace:
        """Estimator of trial durations, by number of workers."""
        pace = forecast.timing_pace(timings.read(self.folder / timings.FILE))
        if speed := Speed.recorded(read_json(self.folder / SUMMARY)):
            pace.guess(lambda trial: sum(speed.trial_s(trial, self.record["train_images"])) / 2)
        return pace

    def outcome(self, row: Timing) -> str:
        """Text on a trial's times and speed."""
        if not row.measured:
            return "FAILED twice"
        speed = f"{row.images_per_s:,.0f} {self.record['called']}s/s"
        return f"{row.seconds_end_to_end:.1f} s end to end, {row.seconds_training:.1f} s training, {speed}"
