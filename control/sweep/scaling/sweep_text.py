"""Messages of a sweep while it is planned and measured."""

from collections.abc import Sequence
from typing import Any

from control.campaign.timings import STRONG, Trial
from control.common import text
from control.common.plan import Plan
from control.runs.results import metric_text
from control.sweep.scaling import advice, forecast
from control.sweep.scaling.design import Wanted, label
from control.sweep.scaling.forecast import Speed
from control.sweep.scaling.sweep_results import Results


def plan(
    record: dict[str, Any], wanted: Wanted, trials: Sequence[Trial], left: Sequence[Trial], run_plan: Plan, folder: str, time: str
) -> str:
    """The plan of a sweep as a block of lines; `time`: how long it will take."""
    counts, dataset = run_plan.counts, run_plan.dataset
    measured_trials = len(trials) - len(left)
    kept = f", {measured_trials} of them measured already" if measured_trials else ""
    every = "" if wanted.checkpoint_every == (0,) else f" x state saved every {_list(wanted.checkpoint_every)} steps"
    shape = f"{_list(wanted.workers)} workers x {text.count(wanted.repeats, 'repeat')} x {text.count(wanted.epochs, 'epoch')}{every}"
    called = record["called"]
    strong = f"strong: {record['global_batch']} {called}s per step over all workers"
    weak = f"weak: {record['batch_size']} {called}s per step on every worker"
    pairs = [
        ("sweep", f"{record['name']} (configuration {record['config_name']})"),
        ("trials", f"{len(trials)}: {shape}{kept}"),
        ("scaling", strong if wanted.scaling == STRONG else weak),
        ("order", f"random in blocks of one repeat, seed {record['seed']}: {_order(left)}"),
        ("hosts", ", ".join(f"{host.label}:{host.port}" for host in run_plan.hosts)),
        ("model", f"{metric_text.model_name(run_plan.config['model'])}, {run_plan.parameters['total']:,} parameters"),
        ("dataset", f"{dataset['name']}: an epoch is {counts['train_images']:,} training {called}s at every number of workers"),
        ("time", time),
        ("results", folder),
    ]
    return text.fields(pairs)


def _order(left: Sequence[Trial]) -> str:
    shown = " ".join(str(trial.workers) for trial in left[:30])
    return f"{shown}{' ...' if len(left) > 30 else ''} workers" if left else "nothing is left to measure"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def warmed_up(trials: Sequence[Trial], speed: Speed | None, examples: int, called: str) -> str:
    """Message after the warm-up: its speed, how long the trials will take, and a warning if these are too short.

    Args:
        trials: what is left to measure.
        speed: of the warm-up; None if it had too few steps.
        examples: of an epoch.
        called: what an example is.
    """
    if speed is None:
        return "warm-up done"
    time = forecast.spoken(*forecast.together(speed, trials, examples))
    short = forecast.too_short(speed, trials, examples)
    warning = f"\n[WARN] {short}" if short else ""
    reached = f"warm-up: {speed.per_s:,.0f} {called}s/s with {text.count(speed.workers, 'worker')}"
    return f"{reached}; {text.count(len(trials), 'trial')} will take {time}{warning}"


def under_way(jobs: Sequence[tuple[int, str, float, float | None]], of: int, later: float | None, at_once: int) -> str:
    """The line of the trials that run: number, label and elapsed time of each, time left for all.

    Args:
        jobs: number, label, elapsed and expected seconds of each trial that runs.
        of: how many trials there are.
        later: expected seconds of those that wait, together.
        at_once: how many may run at once.
    """
    each = "; ".join(f"trial {number} of {of}: {label}, {text.duration(elapsed)}" for number, label, elapsed, _ in jobs)
    known = [max(0.0, expected - elapsed) for _, _, elapsed, expected in jobs if expected is not None]
    left = f"  about {text.duration((sum(known) + later) / at_once)} left" if later is not None and len(known) == len(jobs) else ""
    return f"{each}{left}"


def ended(head: str, label: str, outcome: str, left: float) -> str:
    """The line of a trial that has ended; `left`: expected seconds of the others, 0 if unknown."""
    return f"{head}: {label}: {outcome}{f'  {text.duration(left)} left' if left else ''}"


def results(concluded: Results, folder: str) -> str:
    """The end of a sweep for the terminal: one row per number of workers, the answer, where the files are, the next command."""
    tables = [_measured(one) for one in concluded.studies]
    failed = [label(row.trial) for row in concluded.rows if not row.measured]
    lost = f"failed twice: {'; '.join(failed)} (output: {folder}/logs); the same command tries them again" if failed else ""
    # The command follows below; shown twice it would look like two.
    answer = concluded.answer.replace("**", "").replace(f": `{concluded.following[1]}`", ", as below.")
    where = f"results  {folder}: timings.csv, pictures, and analysis.md, which says why"
    parts = [*tables, answer, lost, where, text.next_commands([concluded.following])]
    return "\n\n".join(part for part in parts if part)


def _measured(one: advice.Study) -> str:
    header = ["workers", "trials", "end to end s", "least to most", "training s", one.work.rate, "speedup", "efficiency"]
    rows = []
    for row in advice.measured(one):
        ends = [timing.seconds_end_to_end or 0.0 for timing in one.of(row["workers"])]
        spread = f"{min(ends):,.1f} to {max(ends):,.1f}" if len(ends) > 1 else "-"
        rows.append(
            [
                row["workers"],
                row["trials"],
                text.Number(row["seconds_end_to_end"]["median"], 1),
                spread.rjust(len("least to most")),
                text.Number(row["seconds_training"]["median"], 1),
                text.Number(row["images_per_s"]["median"], 0),
                text.Number(row["speedup"], 2),
                f"{row['efficiency']:.0%}".rjust(len("efficiency")),
            ]
        )
    return f"Medians, {one.work.scaling} scaling\n{text.table(header, rows)}"
