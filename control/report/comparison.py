"""Several runs compared: which model is better, and by how much. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from control.common.text import listed
from control.report import settings
from control.report.accuracy import margin
from control.report.blocks import Picture, Section, Table, Text, code, percent, points, spent
from control.report.facts import Run
from control.runs.results.metric_text import metric_name
from trainer.data.spec import noun
from trainer.rundir.best_epoch import Monitor
from trainer.rundir.launch_record import LaunchRecord, training
from trainer.rundir.schemas import VALIDATION


def measure(runs: Sequence[Run]) -> Monitor | None:
    """The metric by which runs are compared: that which decides on the best epoch of each; None if they have no such metric."""
    decides = runs[0].monitor
    return decides if all(run.monitor == decides and decides.metric in run.best for run in runs) else None


def section(runs: Sequence[Run], picture: str) -> Section:
    """The table, the sentence, the curves; without curves if no metric decides on all of them."""
    decides = measure(runs)
    differing = settings.differences(runs)
    rows = [[code(key) if "." in key else key, *values] for key, values in differing.items()]
    caption = f"Where they differ ({settings.NONE}: has no effect there, or is not set)"
    table = [Table(caption, ["setting", *(code(run.name) for run in runs)], rows)] if differing else []
    alt = f"Curves of {decides.label} of {listed([run.name for run in runs])} over their epochs." if decides else ""
    pictures = [Picture(picture, alt)] if decides else []
    return Section("Comparison", [Text([better(runs), _beside(differing)]), _table(runs), *table, *pictures])


def _shown(decides: Monitor, value: float) -> str:
    """A value of a metric: a share as a percentage, anything else to four decimals."""
    return percent(value) if decides.is_share else f"{value:.4f}"


def _scores(runs: Sequence[Run], decides: Monitor) -> tuple[str, list[tuple[float, int]]]:
    """Name of the compared metric, and each run's value and number of examples."""
    tests = [run.tests.get(run.best["epoch"], {}) for run in runs]
    if all(_of_test(decides) in test for test in tests):
        return _called(decides), [(test[_of_test(decides)], test["images"]) for test in tests]
    return decides.label, [(run.best[decides.metric], run.cluster["counts"]["validation_images"]) for run in runs]


def _of_test(decides: Monitor) -> str:
    """Name of the same metric among an evaluation's."""
    return decides.metric.removeprefix(VALIDATION)


def _called(decides: Monitor) -> str:
    return f"test {metric_name(_of_test(decides))}"


def better(runs: Sequence[Run]) -> str:
    """Sentence on the best run: its lead over the next one, and its cost."""
    decides = measure(runs)
    if decides is None:
        rules = listed([f"{code(run.name)} is that of {run.monitor.rule}" for run in runs])
        return f"These runs are not compared: the best epoch of {rules}."
    what, scores = _scores(runs, decides)
    order = sorted(range(len(runs)), key=lambda index: scores[index][0], reverse=decides.highest)
    (high, images), (low, others) = scores[order[0]], scores[order[1]]
    first, second = (runs[index] for index in order[:2])
    one, other = f"{code(first.name)} ({code(first.model)})", f"{code(second.name)} ({code(second.model)})"
    if high == low:
        return f"{one} and {other} are equal: {_shown(decides, high)} {what} in their best epochs."
    apart, chance = f"{abs(high - low):.4f}", ""
    if decides.is_share:
        apart, doubt = points(high - low), margin(high, min(images, others))
        chance = f", which may be chance (below {points(doubt)})" if high - low < doubt else ""
    lead = f"{apart} of {what} in the best epoch ({_shown(decides, high)} against {_shown(decides, low)})"
    if first.cluster["dataset"]["digest"] != second.cluster["dataset"]["digest"]:
        return (
            f"{one} reaches {_shown(decides, high)} {what} in its best epoch, {other} {_shown(decides, low)}; these are "
            f"{noun(first.spec, second.spec)}s of different datasets, so they do not show which model is better."
        )
    better_than = f"{one} is better than {other} by" if len(runs) == 2 else f"{one} is the best of {len(runs)} runs, before {other} by"
    return f"{better_than} {lead}{chance}; {_cost(first, second)}."


def _cost(run: Run, other: Run) -> str:
    """The better run's cost, as multiples of the other's."""
    parameters = run.cluster["parameters"]["total"] / other.cluster["parameters"]["total"]
    cost = [f"it has {_times(parameters, 'its parameters', 'as many parameters')}"]
    if run.summary.get("images_per_s") and other.summary.get("images_per_s"):
        speed = run.summary["images_per_s"] / other.summary["images_per_s"]
        rate = f"as many {noun(run.spec, other.spec)}s per second"
        cost.append(f"trained {_times(speed, rate, rate)}")
    return listed(cost)


def _times(ratio: float, of: str, equal: str) -> str:
    """`2.50 times ...`, to two decimals."""
    return equal if f"{ratio:.2f}" == "1.00" else f"{ratio:.2f} times {of}"


def _beside(differing: Mapping[str, Sequence[str]]) -> str:
    """Other differences, from `settings.differences`, that keep runs from being compared by their models alone; every setting counts."""
    models = "model.name" in differing
    others = listed(settings.names(differing))
    if models and others:
        return f"Besides the model, they differ in {others}, so the model alone may not explain the difference."
    if models:
        return "Everything else is the same: dataset, workers, the trainer's code and every other setting."
    if others:
        return f"The model is the same; they differ in {others}."
    return "Model, dataset, workers, the trainer's code and all settings are the same."


def _table(runs: Sequence[Run]) -> Table:
    rate = f"{noun(*(run.spec for run in runs))}s/s"
    decides = measure(runs)
    metrics = [f"best {decides.label}", _called(decides)] if decides else ["best epoch", "on the test examples"]
    header = ["run", "model", "parameters", "workers", "epochs", *metrics, rate, "training time"]
    return Table("The runs", header, [_row(run, decides is not None) for run in runs])


def _row(run: Run, compared: bool) -> list[str]:
    """The cells of a run; where they aren't `compared`, each value with its metric."""
    decides, test = run.monitor, run.tests.get(run.best["epoch"], {})

    def cell(values: Mapping[str, Any], metric: str) -> str:
        if metric not in values:
            return "-"
        return f"{'' if compared else f'{metric_name(metric)} '}{_shown(decides, values[metric])}"

    rate, seconds = run.summary.get("images_per_s"), run.summary.get("seconds_training")
    return [
        code(run.name),
        code(run.model),
        f"{run.cluster['parameters']['total']:,}",
        str(len(training(LaunchRecord.of(run.cluster).hosts))),
        str(run.last["epoch"]),
        f"{cell(run.best, decides.metric)} (epoch {run.best['epoch']})",
        cell(test, _of_test(decides)),
        f"{rate:,.0f}" if rate else "-",
        spent(seconds) if seconds else "-",
    ]
