"""How the metrics of a model that is no classifier of images changed, its best epoch, and its results on the test examples.

Pure functions. A classifier's are in `control.report.accuracy`.
"""

from collections.abc import Sequence

from control.common.text import count, listed
from control.report.blocks import Block, Picture, Section, Table, Text, moment
from control.report.facts import Run
from control.runs.results.metric_text import metric_name
from trainer.rundir.schemas import VALIDATION, metric_values

TIE = "of equals the one with the lower loss, then the earliest, as in summary.json"
"""Choice among epochs with equal best values, as part of a sentence."""


def sections(run: Run, level: int, picture: str, mistakes: Sequence[Block] = ()) -> list[Section]:
    """Course of the training, best epoch, test examples.

    Args:
        run: the run.
        level: of the headings.
        picture: file of the curves.
        mistakes: what the best epoch gets wrong.
    """
    alt = f"Curves of the metrics over the {count(len(run.history), 'epoch')} of {run.name}; epoch {run.best['epoch']} is marked."
    return [
        Section("How the metrics changed", [Text(_course(run)), Picture(picture, alt), _table(run)], level),
        Section("The most promising epoch", [Text(_promising(run))], level),
        Section("Test examples", [*_tested(run), *mistakes], level),
    ]


def _course(run: Run) -> list[str]:
    """Each metric's first and last value, with that on the validation examples."""
    values = metric_values(run.last)
    sentences = []
    for name in [name for name in values if not name.startswith(VALIDATION)]:
        keys = [key for key in (name, VALIDATION + name) if key in values]
        moved = [f"{metric_name(key)} went from {run.first.get(key, values[key]):.4f} to {values[key]:.4f}" for key in keys]
        sentences.append(f"From epoch {run.first['epoch']} to {run.last['epoch']}, {listed(moved)}.")
    return sentences or ["The model has no metrics."]


def _promising(run: Run) -> list[str]:
    """The best epoch, and the rule."""
    decides = run.monitor
    value = f", with a {decides.label} of {run.best[decides.metric]:.4f}" if decides.metric in run.best else ""
    rule = f"The rule: {decides.rule}; {TIE}."
    return [f"Epoch {run.best['epoch']} is the most promising{value}.", rule]


def _tested(run: Run) -> list[Block]:
    """Test results of the evaluated epochs."""
    rows = {epoch: run.tests[epoch] for epoch in run.marked if epoch in run.tests}
    if not rows:
        return [Text(["No epoch has been evaluated on the test examples yet."])]
    names = list(dict.fromkeys(name for row in rows.values() for name in row["metrics"]))
    header = ["epoch", "which", *map(metric_name, names), "examples", "evaluated at"]
    cells = [
        [
            str(epoch),
            run.marked[epoch],
            *(f"{row['metrics'][name]:.4f}" if name in row["metrics"] else "-" for name in names),
            f"{row['images']:,}",
            moment(row["evaluated_at"]),
        ]
        for epoch, row in rows.items()
    ]
    return [Table("The test examples", header, cells)]


def _table(run: Run) -> Table:
    names = list(metric_values(run.last))
    rows = [row for row in run.history if row["epoch"] in run.marked]
    cells = [
        [
            str(row["epoch"]),
            run.marked[row["epoch"]],
            *(f"{row[name]:.4f}" if name in row else "-" for name in names),
            f"{row['learning_rate']:g}",
            f"{row['images_per_s']:,.0f}",
        ]
        for row in rows
    ]
    header = ["epoch", "which", *map(metric_name, names), "learning rate", "examples/s"]
    return Table(f"First, best and last of {count(len(run.history), 'epoch')}; all are in history.csv", header, cells)
