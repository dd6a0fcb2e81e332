"""Course of the accuracy or a model's own metrics, the best epoch, and results on the test examples. Pure functions.

The verdict on a classifier's epochs is that of `control.runs.results.course`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from control.common.text import count, listed
from control.report.blocks import Block, Picture, Section, Table, Text, code, moment, percent, points
from control.report.facts import Run
from control.runs.results.course import OVERFITTING, Trend
from control.runs.results.metric_text import metric_name
from control.runs.results.next_steps import go_on
from trainer.rundir.best_epoch import best_row
from trainer.rundir.schemas import VALIDATION, metric_values

RULE = (
    f"The rule: a run overfits when its last two validation losses are more than {OVERFITTING:g}% above its lowest, an earlier one, "
    "while the training loss kept falling after that epoch (Prechelt 1998, generalisation loss)."
)
TIE = "of equals the one with the lower loss, then the earliest, as in summary.json"
"""Rule for epochs with equal best values, as part of a sentence."""
PROMISE = f"The rule: the highest validation accuracy; {TIE}."


Row = dict[str, Any]
"""An epoch in history.csv, or its evaluation."""
Column = tuple[str, Callable[[Row], str]]
"""Title of a column, and the function that makes its cells."""


def sections(run: Run, mistakes: Sequence[Block] = ()) -> list[Section]:
    """Sections on the course of the training, the best epoch and the test examples; `mistakes`: blocks on the best epoch's errors."""
    what = "accuracy and loss" if run.classifies else "the metrics"
    alt = f"Curves of {what} over the {count(len(run.history), 'epoch')} of {run.name}; epoch {run.best['epoch']} is marked."
    curves = Picture(run.picture("history"), alt)
    if not run.classifies:
        return [
            Section("How the metrics changed", [Text(_course_of_metrics(run)), curves, _table_of_metrics(run)]),
            Section("The most promising epoch", [Text(_best_by_metric(run))]),
            Section("Test examples", [*_tested_metrics(run), *mistakes]),
        ]
    losses = [Text([overfitting(run), RULE])] if len(run.history) > 1 else []
    return [
        Section("How accuracy changed", [Text(course(run)), *losses, curves, _table(run)]),
        Section("The most promising epoch", [Text([*_promising(run), PROMISE])]),
        Section(f"Test {run.noun}s", [*_tested(run), *mistakes]),
    ]


def _middle(run: Run) -> dict[str, Any]:
    """Row of the middle epoch; of two middle epochs, the earlier one."""
    return run.history[(len(run.history) - 1) // 2]


def course(run: Run) -> list[str]:
    """Sentences on the change of training and validation accuracy, and on the epoch with the largest gap."""
    if len(run.history) == 1:
        only = f"training accuracy {percent(run.first['accuracy'])}, validation accuracy {percent(run.first['val_accuracy'])}"
        return [f"Only epoch {run.first['epoch']} is finished: {only}. One epoch shows no trend."]
    wide = max(run.history, key=lambda row: (abs(row["accuracy"] - row["val_accuracy"]), -row["epoch"]))
    gap, above = points(wide["accuracy"] - wide["val_accuracy"]), "training" if wide["accuracy"] > wide["val_accuracy"] else "validation"
    return [
        _moved(run, "Training accuracy", "accuracy"),
        _moved(run, "Validation accuracy", "val_accuracy"),
        f"They were farthest apart in epoch {wide['epoch']}: {gap}, {above} above."
        if gap != points(0)
        else "Both were the same in every epoch.",
        "Training accuracy is the mean over an epoch's steps, while the weights still change; validation is measured at its end.",
    ]


def _moved(run: Run, what: str, key: str) -> str:
    """Text on a value from the first to the last epoch; via the middle epoch if one lies between."""
    rows = [run.first, *([_middle(run)] if len(run.history) > 2 else []), run.last]
    at = [f"{percent(row[key])} (epoch {row['epoch']})" for row in rows]
    first, last = run.first[key], run.last[key]
    if percent(first) == percent(last) or not min(first, last) <= rows[-2][key] <= max(first, last):
        return f"{what} was {listed(at)}."
    through = f" through {at[1]}" if len(at) > 2 else ""
    return f"{what} {'rose' if last > first else 'fell'} from {at[0]}{through} to {at[-1]}."


def overfitting(run: Run) -> str:
    """Sentence on whether the run overfits, by `RULE`, and since which epoch."""
    course = run.course
    low, last = course.low, course.last
    if low is last:
        return f"No overfitting: validation loss is at its lowest, {low['val_loss']:.4f}, in the last epoch."
    fell = "fell" if last["loss"] < low["loss"] else "did not fall"
    end = f"is {course.rise:.1f}% above that at the end" if math.isfinite(course.rise) else f"is {last['val_loss']:.4f} at the end"
    losses = f"validation loss was lowest in epoch {low['epoch']} ({low['val_loss']:.4f}) and {end}"
    train = f"training loss {fell} from {low['loss']:.4f} to {last['loss']:.4f}"
    if course.trend is Trend.OVERFITS:
        return f"The model overfits after epoch {low['epoch']}: {losses}, while {train}."
    return f"No overfitting by the rule: {losses}; meanwhile {train}."


def _promising(run: Run) -> list[str]:
    """Sentences on the best epoch, its lead over the last and the next best, and the part of the lead that may be chance."""
    best, others = run.best, [row for row in run.history if row is not run.best]
    sentences = [f"Epoch {best['epoch']} is the most promising, with a validation accuracy of {percent(best['val_accuracy'])}."]
    if not others:
        return [*sentences, "It is the only one.", _advice(run)]
    following = best_row(others)
    leads = [_lead(best, following, "the next best")]
    if run.last not in (best, following):
        leads.append(_lead(best, run.last, "the last"))
    sentences += [f"It lies {listed(leads)}.", _advice(run)]
    return [*sentences, _chance(best["val_accuracy"], run.record.counts["validation_images"], f"validation {run.noun}")]


def _lead(best: dict[str, Any], other: dict[str, Any], which: str) -> str:
    ahead = best["val_accuracy"] - other["val_accuracy"]
    far = "level with" if points(ahead) == points(0.0) else f"{points(ahead)} above"
    return f"{far} {which} ({_named(other)})"


def _named(row: dict[str, Any]) -> str:
    return f"epoch {row['epoch']}, {percent(row['val_accuracy'])}"


def _advice(run: Run) -> str:
    """Advice on training longer: one sentence that follows from the verdict."""
    course = run.course
    if course.longer:
        why = "One epoch says little" if course.trend is Trend.SINGLE else "It is the last one, so accuracy may still have been rising"
        label, command = go_on(run.name, run.summary, run.last["epoch"])
        return f"{why}; {label}: {code(command)}." if command else f"{why}; {label}."
    later = run.last["epoch"] - course.best["epoch"]
    if course.trend is Trend.PASSED:
        return f"None of the {count(later, 'epoch')} after it was better." if later > 1 else "The epoch after it was not better."
    why = "The run overfits"
    if later == 0:
        why = f"It is the last one, but the run overfits: its loss on validation {run.noun}s rose while accuracy did, too"
    return f"{why}, so more epochs of the same are not advised."


def margin(accuracy: float, images: int) -> float:
    """Difference of two accuracies (shares) that chance may explain: two standard errors of a difference.

    Binomial, with separate images for each accuracy; on the same images, chance explains less, so this errs on the safe side.
    """
    return 2 * math.sqrt(2 * accuracy * (1 - accuracy) / images)


def _chance(accuracy: float, images: int, what: str) -> str:
    """The sentence for `margin`."""
    return f"With {count(images, what)}, differences below {points(margin(accuracy, images))} may be chance (two binomial standard errors)."


def _table(run: Run) -> Table:
    marks, half = dict(run.marked), _middle(run)["epoch"]
    if len(run.history) > 2:
        marks[half] = f"middle, {marks[half]}" if half in marks else "middle"
    rows = [row for row in run.history if row["epoch"] in marks]
    some = f"First, middle, best and last of {count(len(run.history), 'epoch')}; all are in history.csv"
    losses, shares = ("loss", _number("loss")), ("accuracy", _share("accuracy"))
    validation = [("validation loss", _number("val_loss")), ("validation accuracy", _share("val_accuracy"))]
    columns = [losses, shares, *validation, *_speed(f"{run.noun}s/s")]
    return _table_of(some if len(rows) < len(run.history) else "All epochs, as in history.csv", rows, marks, columns)


def _table_of(caption: str, rows: Sequence[Row], marks: Mapping[int, str], columns: Sequence[Column]) -> Table:
    """Table with one row per epoch: its number, its marks, and these columns."""
    cells = [[str(row["epoch"]), marks[row["epoch"]], *(cell(row) for _, cell in columns)] for row in rows]
    return Table(caption, ["epoch", "which", *(title for title, _ in columns)], cells)


def _number(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row[name]:.4f}" if name in row else "-"


def _share(name: str) -> Callable[[Row], str]:
    return lambda row: percent(row[name])


def _speed(unit: str) -> list[Column]:
    return [("learning rate", lambda row: f"{row['learning_rate']:g}"), (unit, lambda row: f"{row['images_per_s']:,.0f}")]


def _evaluated(noun: str) -> list[Column]:
    return [(f"{noun}s", lambda row: f"{row['images']:,}"), ("evaluated at", lambda row: moment(row["evaluated_at"]))]


def _test_rows(run: Run) -> list[Row]:
    """Test results of the marked epochs."""
    return [{"epoch": epoch, **run.tests[epoch]} for epoch in run.marked if epoch in run.tests]


def _tested(run: Run) -> list[Block]:
    """Test results of the first, best and last epoch, and the missing ones."""
    if not run.record.dataset["test"]:
        return [Text([f"The dataset has no test {run.noun}s."])]
    results, missing = _test_sentences(run), _untested(run)
    evaluated: list[Block] = [Text(results), _test_table(run)] if results else []
    return [*evaluated, *([Text(missing)] if missing else [])]


def _test_sentences(run: Run) -> list[str]:
    """Test accuracy of the evaluated epochs; empty if there are none."""
    evaluated = [epoch for epoch in run.marked if epoch in run.tests]
    if not evaluated:
        return []
    each = [f"{percent(run.tests[epoch]['accuracy'])} in epoch {epoch} ({run.marked[epoch]})" for epoch in evaluated]
    sentences = [
        f"On {count(run.tests[evaluated[-1]]['images'], f'test {run.noun}')}, which training never saw, accuracy is {listed(each)}."
    ]
    best = run.tests.get(run.best["epoch"])
    if best is None:
        return sentences
    last = run.tests.get(run.last["epoch"])
    if last is not None and run.best is not run.last:
        sentences.append(f"The best epoch is {_against(best['accuracy'], last['accuracy'])} the last.")
    validation = _against(best["accuracy"], run.best["val_accuracy"])
    sentences.append(f"The best epoch's test accuracy is {validation} its validation accuracy, by which it was chosen.")
    return [*sentences, _chance(best["accuracy"], best["images"], f"test {run.noun}")]


def _against(one: float, other: float) -> str:
    if points(one - other) == points(0):
        return "level with"
    return f"{points(one - other)} {'above' if one > other else 'below'}"


def _test_table(run: Run) -> Table:
    validation = {row["epoch"]: row["val_accuracy"] for row in run.history}
    columns = [("test loss", _number("loss")), ("test accuracy", _share("accuracy"))]
    columns += [("validation accuracy", lambda row: percent(validation[row["epoch"]])), *_evaluated(run.noun)]
    return _table_of(f"The test {run.noun}s", _test_rows(run), run.marked, columns)


def _untested(run: Run) -> list[str]:
    """Missing test results, and the command that produces them."""
    can = run.testable()
    named, lost = (
        listed([f"{epoch} ({run.marked[epoch]})" for epoch in epochs])
        for epochs in (can, [epoch for epoch in run.untested() if epoch not in can])
    )
    sentences = [f"Not evaluated on the test {run.noun}s yet: epoch {named}. To evaluate: {code(run.evaluation_command)}."] if named else []
    return [*sentences, *([f"Epoch {lost} can't be evaluated: there is no snapshot of it in checkpoints/."] if lost else [])]


def short(run: Run) -> list[str]:
    """Test accuracy and overfitting in a sentence each."""
    best, course = run.tests.get(run.best["epoch"]), run.course
    sentences = [f"Its best epoch reaches {percent(best['accuracy'])} on {count(best['images'], f'test {run.noun}')}."] if best else []
    if len(run.history) > 1:
        sentences.append(
            f"It overfits after epoch {course.low['epoch']}."
            if course.trend is Trend.OVERFITS
            else "It does not overfit, by the rule stated below."
        )
    return sentences


def _course_of_metrics(run: Run) -> list[str]:
    """Each metric's first and last value on the training and validation examples."""
    values = metric_values(run.last)
    sentences = []
    for name in [name for name in values if not name.startswith(VALIDATION)]:
        keys = [key for key in (name, VALIDATION + name) if key in values]
        moved = [f"{metric_name(key)} went from {run.first.get(key, values[key]):.4f} to {values[key]:.4f}" for key in keys]
        sentences.append(f"From epoch {run.first['epoch']} to {run.last['epoch']}, {listed(moved)}.")
    return sentences or ["The model has no metrics."]


def _best_by_metric(run: Run) -> list[str]:
    """The best epoch, and the rule."""
    decides = run.monitor
    value = f", with a {decides.label} of {run.best[decides.metric]:.4f}" if decides.metric in run.best else ""
    rule = f"The rule: {decides.rule}; {TIE}."
    return [f"Epoch {run.best['epoch']} is the most promising{value}.", rule]


def _tested_metrics(run: Run) -> list[Block]:
    """Test results of the evaluated epochs."""
    rows = _test_rows(run)
    if not rows:
        return [Text(["No epoch has been evaluated on the test examples yet."])]
    names = dict.fromkeys(name for row in rows for name in row["metrics"])
    columns = [*((metric_name(name), _number(name)) for name in names), *_evaluated("example")]
    return [_table_of("The test examples", rows, run.marked, columns)]


def _table_of_metrics(run: Run) -> Table:
    rows = [row for row in run.history if row["epoch"] in run.marked]
    columns = [*((metric_name(name), _number(name)) for name in metric_values(run.last)), *_speed("examples/s")]
    caption = f"First, best and last of {count(len(run.history), 'epoch')}; all are in history.csv"
    return _table_of(caption, rows, run.marked, columns)
