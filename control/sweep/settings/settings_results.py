"""A sweep over settings, from its files: analysis.md, a picture, summary.json. Recomputed each time, written only if changed."""

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from control.campaign.store import SUMMARY
from control.common import configurations, text
from control.common.written_files import put_changed
from control.runs.results import metric_text
from control.sweep.settings import settings_plot, trial_settings
from control.sweep.settings.trial_settings import FAILED, FILE, STORE, SUCCEEDED, Result
from trainer.common.errors import ConfigError
from trainer.common.files import read_json, write_json, write_text
from trainer.rundir.best_epoch import Monitor, monitor

PICTURE = "settings.png"
EDGE = 3
"""Fewest tried values of a key for a remark that the best one is at their end: of two values, each is at an end."""
SHOWN = 30
"""Most trials in the terminal's table."""


@dataclass(frozen=True)
class Results:
    """The results of a sweep over settings."""

    rows: list[Result]
    """Rows, the best first; rows without a metric last."""
    keys: list[str]
    metric: Monitor
    noun: str
    """Noun for the examples counted per second."""
    answer: str
    commands: list[tuple[str, str]]
    changed: bool = False
    """True if any file differs from before."""

    def cells(self) -> tuple[list[str], list[list[Any]]]:
        """Header and rows of the table of trials."""
        names = trial_settings.short_keys(self.keys)
        header = [
            *(names[key] for key in self.keys),
            metric_text.metric_name(self.metric.metric),
            "epoch",
            "end to end s",
            f"{self.noun}/s",
            "state",
        ]
        return header, [
            [*(trial_settings.value_text(row.values[key]) for key in self.keys), *_numbers(row, self.metric), row.state]
            for row in self.rows
        ]

    def failures(self) -> list[str]:
        """Lines on trials that did not succeed, one each."""
        return [f"{row.values.label}: {row.state}: {row.reason}" for row in self.rows if row.state != SUCCEEDED]

    def shown(self, folder: str) -> str:
        """The end of the sweep for the terminal: the best trials, the answer, the paths of the files, the next commands."""
        header, rows = self.cells()
        more = f"\n  and {len(rows) - SHOWN} more, in {folder}/analysis.md" if len(rows) > SHOWN else ""
        table = text.table(header, rows[:SHOWN]) + more
        lost = self.failures()
        without = "Without a result\n" + "\n".join(f"  {line}" for line in lost[:SHOWN]) if lost else ""
        where = f"results  {folder}: trials.csv, analysis.md, settings.png"
        parts = [table, self.answer.replace("**", ""), without, where, text.next_commands(self.commands)]
        return "\n\n".join(part for part in parts if part)


def conclude(folder: Path, typed: Callable[[str], str] = lambda text: text) -> Results:
    """Rank all trials so far, write all results.

    Args:
        folder: the sweep's folder.
        typed: completes commands for the user, as with `-i INVENTORY`.

    Raises:
        ConfigError: no trial has succeeded yet.
    """
    record, rows = dict(read_json(folder / SUMMARY)), STORE.read(folder / FILE)
    results = rank(rows, record, configurations.load(folder / "config.yml")["train"]["monitor"])
    counted = Counter(row.state for row in rows)
    best = results.rows[0]
    chosen = {"run": best.run, "settings": best.values, "metric": best.metric, "value": best.value, "epoch": best.epoch}
    written = {"states": dict(counted), "best": chosen}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as fresh:
        write_text(Path(fresh, "analysis.md"), typed(_analysis(results)))
        write_json(Path(fresh, SUMMARY), {**record, **written})
        settings_plot.parallel(results.rows, results.keys, results.metric, Path(fresh, PICTURE))
        changed = put_changed(Path(fresh), folder)
    commands = [(label, typed(command)) for label, command in results.commands]
    return replace(results, answer=typed(results.answer), commands=commands, changed=bool(changed))


def rank(rows: Sequence[Result], record: dict[str, Any], asked: str | None) -> Results:
    """The trials, best first, and the conclusions.

    Args:
        rows: of trials.csv.
        record: the sweep's summary.json.
        asked: `train.monitor`.

    Raises:
        ConfigError: no trial has a metric.
    """
    name, judged = record["name"], Counter(row.metric for row in rows if row.state == SUCCEEDED and row.value is not None)
    if not judged:
        failed = next((f"; {row.run}: {row.reason}" for row in rows if row.reason), "")
        raise ConfigError(
            f"sweep={name}: no trial has succeeded yet ({len(rows)} failed, their output is in sweeps/{name}/logs{failed}). "
            f"Fix that, then: ansible-playbook sweep.yml -e sweep={name}"
        )
    metric = monitor((), asked or judged.most_common(1)[0][0])
    sign = -1 if metric.highest else 1

    def order(row: Result) -> tuple[bool, bool, float]:
        return row.state != SUCCEEDED, row.metric != metric.metric or row.value is None, sign * (row.value or 0.0)

    ordered, keys = sorted(rows, key=order), list(record["varied"])
    # If numbers are drawn at random, the largest says little about larger ones.
    answer = " ".join([_answer(ordered), *(_edges(ordered, keys) if record["drawn"] is None else ())])
    return Results(ordered, keys, metric, record["noun"], answer, _commands(ordered, name, record["workers"]))


def _answer(ordered: Sequence[Result]) -> str:
    best = ordered[0]
    level = sum(row.value == best.value for row in ordered if row.state == SUCCEEDED and row.metric == best.metric)
    others = f"; {text.count(level - 1, 'other trial')} reached the same" if level > 1 else ""
    return f"The best of them is **{best.values.label}**: {best.metric_words}{others}."


def _edges(rows: Sequence[Result], keys: Sequence[str]) -> list[str]:
    """Sentences on keys for which the best trial has the smallest or largest tried value."""
    names, sentences = trial_settings.short_keys(keys), []
    for key in keys:
        tried = {row.values[key] for row in rows if row.state == SUCCEEDED and _is_number(row.values[key])}
        value = rows[0].values[key]
        if len(tried) >= EDGE and value in (min(tried), max(tried)):
            end, more = ("smallest", "smaller") if value == min(tried) else ("largest", "larger")
            sentences.append(f"{names[key]}={trial_settings.value_text(value)} is the {end} that was tried; a {more} one may be better.")
    return sentences


def _is_number(value: Any) -> bool:
    """Return whether a value is a number on a scale."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _commands(rows: Sequence[Result], name: str, workers: int) -> list[tuple[str, str]]:
    best = f"ansible-playbook train.yml -e config=sweeps/{name}/{trial_settings.CONFIGS}/{rows[0].run}.yml -e workers={workers}"
    failed = [("try the failed again", f"ansible-playbook sweep.yml -e sweep={name}")] if rows[-1].state == FAILED else []
    return [("train the best", best), ("curves", "ansible-playbook tensorboard.yml"), *failed]


def _numbers(row: Result, metric: Monitor) -> list[Any]:
    value = row.value if row.metric == metric.metric else None
    numbers = ((value, 4), (row.epoch, 0), (row.seconds_end_to_end, 1), (row.images_per_s, 0))
    return ["-" if number is None else text.Number(number, decimals) for number, decimals in numbers]


def _analysis(results: Results) -> str:
    """analysis.md."""
    header, rows = results.cells()
    parts = [
        "# Which settings are best?",
        results.answer,
        f"Train with them:\n\n    {results.commands[0][1]}",
        f"## Trials\n\nSorted by {results.metric.rule} of any epoch; time is from the launch to the end of the last worker.",
        text.markdown_table(header, rows),
        f"![Each line is a trial]({PICTURE})",
    ]
    if lost := results.failures():
        parts.append("## Without a result\n\n" + "\n".join(f"- {line}" for line in lost))
    parts.append(
        "## How to read it\n\nOne training each: with another seed the same settings give other numbers, and the best of many trials is in "
        "part lucky. To see how much, vary the seed (`seed=1,2,3`) with the best settings, and judge the final model by its test examples, "
        "which no trial has seen."
    )
    return "\n\n".join(parts) + "\n"
