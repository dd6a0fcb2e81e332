"""Forecast of trial durations before any trial has ended, from the warm-up or from an earlier run of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from control.campaign.store import Pace
from control.campaign.timings import SUCCEEDED, Timing, Trial, typical_rate
from control.common import configurations, project, text
from control.common.plan import Plan
from control.runs.results.summary import Summary
from control.sweep.scaling import design
from trainer.common.errors import LockstepError
from trainer.rundir.phases import ONLY_ONCE

COMMAND_S = 4.0
"""Seconds of a trial's command before its launch and after its end: plan, copies for the hosts, collection. The warm-up's own seconds
are no measure, because it also publishes the dataset.
"""
SHORT_S = 10.0
"""Least seconds of steps for a useful trial: below, start-up, bursts of other work and the first call dominate the time."""


@dataclass(frozen=True)
class Speed:
    """Speed of one run, from which another run's duration follows."""

    workers: int
    per_s: float
    """Training examples of all workers per second of steps."""
    around_s: float = 0.0
    """Seconds outside epochs: start, end, collection."""
    epoch_s: float = 0.0
    """Seconds of an epoch outside its steps: validation, saved states."""
    one_machine: bool = False
    """True if all workers share one machine's cores: fewer workers are about as fast."""

    @classmethod
    def of_warm_up(cls, summary: Summary, records: Sequence[Mapping[str, Any]], one_machine: bool) -> "Speed | None":
        """Speed of a warm-up of one epoch; None if it had too few steps.

        Args:
            summary: the warm-up's summary.json.
            records: records of its chief's metrics.jsonl.
            one_machine: whether its workers share a machine.
        """
        steps = [record for record in records if record["kind"] == "steps"]
        rate = typical_rate(steps)
        if rate is None:
            return None
        phases = [record for record in records if record["kind"] == "phase"]
        once = sum(after["t"] - before["t"] for before, after in pairwise(phases) if before["phase"] in ONLY_ONCE)
        training = summary.seconds_training or 0.0
        outside = max(0.0, training - sum(record["seconds"] for record in steps))
        around = max(0.0, (summary.seconds_end_to_end or 0.0) - training - once)
        return cls(summary.workers or 1, rate, around + COMMAND_S, outside, one_machine)

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> "Speed | None":
        """The speed in a sweep's summary.json; None before its warm-up."""
        return cls(**record["speed"]) if "speed" in record else None

    def steps_s(self, workers: int, examples: int) -> tuple[float, float]:
        """Shortest and longest time of the steps over this many examples, seconds: with no and with perfect scaling."""
        alike = examples / self.per_s
        alone = alike if self.one_machine else alike * self.workers / workers
        return min(alike, alone), max(alike, alone)

    def trial_s(self, trial: Trial, examples: int) -> tuple[float, float]:
        """Shortest and longest time of a trial with this many training examples per epoch, in seconds."""
        least, most = self.steps_s(trial.workers, examples)
        return self.around_s + trial.epochs * (least + self.epoch_s), self.around_s + trial.epochs * (most + self.epoch_s)

    def together(self, trials: Sequence[Trial], examples: int) -> str:
        """Text on the duration of successive trials: `about 1:20`, or `1:20 to 3:10` if the bounds differ by more than a guess's error."""
        each = [self.trial_s(trial, examples) for trial in trials]
        least, most = sum(one for one, _ in each), sum(one for _, one in each)
        return f"about {text.duration(most)}" if most < 1.25 * least else f"{text.duration(least)} to {text.duration(most)}"

    def too_short(self, trials: Sequence[Trial], examples: int) -> str:
        """Warning about trials whose training is too short to measure its speed; empty if there are none."""
        short = {trial: trial.epochs * max(self.steps_s(trial.workers, examples)) for trial in trials}
        if not short or min(short.values()) >= SHORT_S:
            return ""
        trial = min(short, key=lambda one: short[one])
        epochs = -(-trial.epochs * SHORT_S // short[trial])
        return (
            f"trials of {text.count(trial.epochs, 'epoch')} train for {short[trial]:.0f} s or less, and noise may hide how fast they are; "
            f"for a surer answer: -e epochs={epochs:.0f}"
        )


def earlier(run_plan: Plan) -> tuple[str, Speed] | None:
    """Name and speed of the newest run of a plan's model on the same number of workers."""
    workers, model = run_plan.counts["workers"], run_plan.config["model"]
    for path in sorted(project.RUNS.glob("*/summary.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        summary = Summary.read(path.parent)
        if summary.state != SUCCEEDED or summary.workers != workers or not summary.images_per_s:
            continue
        try:
            if configurations.load(path.parent / "config.yml").get("model") != model:
                continue
        except (LockstepError, OSError):
            continue
        around = (summary.seconds_end_to_end or 0.0) - (summary.seconds_training or 0.0)
        return path.parent.name, Speed(workers, summary.images_per_s, max(0.0, around))
    return None


def before(left: Sequence[Trial], rows: Sequence[Timing], record: Mapping[str, Any], run_plan: Plan) -> str:
    """Text for a plan on the duration of a sweep over numbers of workers.

    Args:
        left: trials to measure, one after another.
        rows: earlier trials.
        record: the sweep's summary.json.
        run_plan: plan of the largest trial.
    """
    if not left:
        return "nothing is left to measure"
    how_many = text.count(len(left), "trial")
    alike = [row for row in rows if row.epochs == left[0].epochs]
    if (seconds := timing_pace(alike).left(left)) is not None:
        return f"about {text.duration(seconds)} for {how_many}, as those before"
    if speed := Speed.recorded(record):
        return f"{speed.together(left, record['train_images'])} for {how_many}, by the warm-up before"
    if found := earlier(run_plan):
        run, speed = found
        return f"{speed.together(left, record['train_images'])} for {how_many}, at the speed of run {run}"
    return f"{how_many}; how long is known after the warm-up"


def timing_pace(rows: Sequence[Timing]) -> Pace:
    """Estimator of trial durations by number of workers, from the `rows` measured before."""
    return design.pace(rows, lambda trial: trial.workers)


def warmed_up(trials: Sequence[Trial], speed: Speed | None, examples: int, called: str) -> str:
    """Message after the warm-up: its speed, the trials' duration, and a warning if they are too short.

    Args:
        trials: remaining trials.
        speed: the warm-up's; None if it had too few steps.
        examples: number of examples in an epoch.
        called: noun for an example.
    """
    if speed is None:
        return "warm-up done"
    short = speed.too_short(trials, examples)
    warning = f"\n[WARN] {short}" if short else ""
    reached = f"warm-up: {speed.per_s:,.0f} {called}s/s with {text.count(speed.workers, 'worker')}"
    return f"{reached}; {text.count(len(trials), 'trial')} will take {speed.together(trials, examples)}{warning}"
