"""Messages of a sweep over settings: its plan, its results."""

from collections.abc import Mapping, Sequence
from typing import Any

from control.common import text
from control.common.plan import Plan
from control.runs.results import metric_text
from control.sweep.settings import trial_settings
from control.sweep.settings.settings_plan import Wanted
from control.sweep.settings.settings_results import SHOWN, Results, cells, failures
from control.sweep.settings.trial_settings import Range, Result
from trainer.common.safe_text import printable
from trainer.config.schema import Config

MOST = 20
"""Trials in the plan's list, except with --check."""


def plan(
    record: dict[str, Any],
    wanted: Wanted,
    trials: Mapping[str, Config],
    rows: Sequence[Result],
    run_plan: Plan,
    folder: str,
    time: str,
    most: int | None = None,
) -> str:
    """The plan as a block of lines, and the list of trials.

    Args:
        record: the sweep's summary.json.
        wanted: the user's request.
        trials: configurations by the name of their run.
        rows: of trials.csv.
        run_plan: of the first trial.
        folder: the sweep's, as typed.
        time: how long it will take.
        most: trials to list; None for all.
    """
    counts, dataset = run_plan.counts, run_plan.dataset
    done = sum(row.measured and row.run in trials for row in rows)
    how = f"drawn at random, seed {record['seed']}" if wanted.drawn else "every combination"
    decides = run_plan.config["train"]["monitor"] or "validation accuracy, or validation loss without one"
    examples = f"{counts['train_images']:,} training and {counts['validation_images']:,} validation {record['noun']}"
    why = (run_plan.choice or {}).get("why")
    pairs = [
        ("sweep", f"{record['name']} (configuration {run_plan.config_name})"),
        *([("configuration", why)] if why else []),
        ("varied", "; ".join(f"{key}: {_values(values)}" for key, values in wanted.space.items())),
        ("trials", f"{len(trials)}, {how}{f', {done} of them done already' if done else ''}"),
        ("hosts", _hosts(wanted)),
        ("judged by", f"{decides}, in the best epoch"),
        ("model", f"{metric_text.model_name(run_plan.config['model'])}, {run_plan.parameters['total']:,} parameters"),
        ("dataset", f"{dataset['name']}: {examples}"),
        ("first trial", f"{counts['total_steps']:,} steps in {text.count(counts['epochs'], 'epoch')}"),
        ("time", time),
        ("results", folder),
        *(("warning", warning) for warning in run_plan.warnings),
    ]
    return f"{text.fields(pairs)}\n\n{_list(wanted, trials, rows, most)}"


def _list(wanted: Wanted, trials: Mapping[str, Config], rows: Sequence[Result], most: int | None) -> str:
    states, cells = {row.run: row.state for row in rows}, []
    for number, (run, config) in enumerate(list(trials.items())[:most], 1):
        values = trial_settings.values_of(config, wanted.space).values()
        cells.append([number, *map(trial_settings.shown, values), states.get(run, "to do")])
    more = f"\n  and {len(trials) - len(cells)} more: --check lists them" if len(trials) > len(cells) else ""
    return text.table(["trial", *wanted.names, "state"], cells) + more


def _values(values: tuple[Any, ...] | Range) -> str:
    return str(values) if isinstance(values, Range) else printable(", ".join(map(trial_settings.shown, values)), 200)


def _hosts(wanted: Wanted) -> str:
    """Hosts of each training, and hosts without work, in words."""
    at_once = f"{len(wanted.groups)} trials at once: " if len(wanted.groups) > 1 else ""
    unused = f"; not used: {' '.join(wanted.idle)}" if wanted.idle else ""
    return f"{wanted.workers} per trial, {at_once}{' | '.join(' '.join(group) for group in wanted.groups)}{unused}"


def results(concluded: Results, folder: str) -> str:
    """The end of the sweep for the terminal: the best trials, the answer, where the files are, the next commands."""
    header, rows = cells(concluded)
    more = f"\n  and {len(rows) - SHOWN} more, in {folder}/analysis.md" if len(rows) > SHOWN else ""
    table = text.table(header, rows[:SHOWN]) + more
    lost = failures(concluded)
    without = "Without a result\n" + "\n".join(f"  {line}" for line in lost[:SHOWN]) if lost else ""
    where = f"results  {folder}: trials.csv, analysis.md, settings.png"
    parts = [table, concluded.answer.replace("**", ""), without, where, text.next_commands(concluded.commands)]
    return "\n\n".join(part for part in parts if part)
