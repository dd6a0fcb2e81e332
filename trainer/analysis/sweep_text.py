"""What a person reads of a sweep while it is planned and measured."""

from collections.abc import Sequence
from typing import Any

from trainer.analysis import advice, text
from trainer.analysis.scaling import again
from trainer.analysis.sweep import Pace, Wanted, label
from trainer.analysis.sweep_results import Results
from trainer.analysis.timings import STRONG, Timing, Trial


def plan(found: dict[str, Any], wanted: Wanted, trials: Sequence[Trial], left: Sequence[Trial], made: dict[str, Any], folder: str) -> str:
    """The plan of a sweep as a block of lines."""
    counts, dataset = made["counts"], made["dataset"]
    done = len(trials) - len(left)
    kept = f", {done} of them measured already" if done else ""
    shape = f"{_list(wanted.workers)} workers x {wanted.repeats} repeats x {wanted.epochs} epochs{_every(wanted)}"
    pairs = [
        ("sweep", f"{found['name']} (configuration {found['config_name']})"),
        ("trials", f"{len(trials)}: {shape}{kept}"),
        ("scaling", _scaling(wanted, found)),
        ("order", f"random in blocks of one repeat, seed {found['seed']}: {_order(left)}"),
        ("hosts", ", ".join(f"{host['name']} {host['address']}:{host['port']}" for host in made["hosts"])),
        ("model", f"{made['config']['model']['name']}, {made['parameters']['total']:,} parameters"),
        ("dataset", f"{dataset['name']}: an epoch is {counts['train_images']:,} training images at every number of workers"),
        ("results", folder),
    ]
    return "Plan\n" + text.fields(pairs)


def _order(left: Sequence[Trial]) -> str:
    shown = " ".join(str(trial.workers) for trial in left[:30])
    return f"{shown}{' ...' if len(left) > 30 else ''} workers" if left else "nothing is left to measure"


def _every(wanted: Wanted) -> str:
    if wanted.checkpoint_every == (0,):
        return ""
    return f" x state saved every {_list(wanted.checkpoint_every)} steps"


def _scaling(wanted: Wanted, found: dict[str, Any]) -> str:
    if wanted.scaling == STRONG:
        return f"strong: {found['global_batch']} images a step over all workers"
    return f"weak: {found['batch_size']} images a step on every worker"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def under_way(number: int, of: int, trial: Trial, elapsed: float, pace: Pace, after: Sequence[Trial]) -> str:
    """The line of a trial that runs: which of how many, since when, how long for all that is left."""
    expected, later = pace.expected(trial.workers), pace.left(after)
    left = f"about {text.duration(max(0.0, expected - elapsed) + later)} left" if expected is not None and later is not None else ""
    return f"trial {number} of {of}: {label(trial)}, {text.duration(elapsed)}  {left}".rstrip()


def measured(number: int, of: int, row: Timing, pace: Pace, after: Sequence[Trial]) -> str:
    """The line of a trial that is over."""
    later = pace.left(after)
    left = f"  {text.duration(later)} left" if later else ""
    head = f"trial {number} of {of}: {label(row.trial)}"
    if not row.measured:
        return f"{head}: FAILED twice{left}"
    return (
        f"{head}: {row.seconds_end_to_end:.1f} s end to end, {row.seconds_training:.1f} s training, {row.images_per_s:,.0f} images/s{left}"
    )


def results(found: Results, folder: str, reported: bool) -> str:
    """The end of a sweep for the terminal: a row a number of workers, the answer, where things lie, next commands.

    Args:
        found: of `sweep_results.conclude`.
        folder: the sweep's, as a person would type it.
        reported: whether there is a run whose report could hold the sweep.
    """
    tables = [_measured(one) for one in found.found]
    failed = [label(row.trial) for row in found.rows if not row.measured]
    lost = f"failed twice: {'; '.join(failed)} (output: {folder}/logs); the same command tries them again" if failed else ""
    name = folder.rpartition("/")[2]
    repeats = max(row.repeat for row in found.rows) + 2
    more = [("measure more", again(one.rows, name, repeats)) for one in found.found if one.rows]
    report = [("put it into a report", f"ansible-playbook report.yml -e sweep={name}")] if reported else []
    commands = text.next_commands([("read why", f"less {folder}/analysis.md"), *more, *report])
    parts = [*tables, found.answer.replace("**", ""), lost, f"results  {folder}: timings.csv, analysis.md, pictures", commands]
    return "\n\n".join(part for part in parts if part)


def _measured(one: advice.Study) -> str:
    header = ["workers", "trials", "end to end s", "+-", "training s", "images/s", "speedup", "efficiency"]
    rows = [
        [
            row["workers"],
            row["trials"],
            text.Number(row["seconds_end_to_end"]["median"], 1),
            text.Number(row["seconds_end_to_end"]["std"] or 0.0, 1),
            text.Number(row["seconds_training"]["median"], 1),
            text.Number(row["images_per_s"]["median"], 0),
            text.Number(row["speedup"], 2),
            f"{row['efficiency']:.0%}".rjust(len("efficiency")),
        ]
        for row in advice.measured(one)
    ]
    return f"Medians, {one.work.scaling} scaling\n{text.table(header, rows)}"
