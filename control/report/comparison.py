"""Several runs compared: which model is better, and by how much. Pure functions."""

from collections.abc import Mapping, Sequence

from control.report import settings
from control.report.accuracy import margin
from control.report.blocks import Picture, Section, Table, Text, code, percent, points, spent
from control.report.facts import Run
from control.runs.cluster import trains
from control.text import listed
from trainer.data.spec import noun


def section(runs: Sequence[Run], picture: str) -> Section:
    """The table, the sentence, the curves."""
    alt = f"Curves of validation accuracy of {listed([run.name for run in runs])} over their epochs."
    differing = settings.differences(runs)
    rows = [[code(key) if "." in key else key, *values] for key, values in differing.items()]
    caption = f"Where they differ ({settings.NONE}: has no effect there, or is not set)"
    table = [Table(caption, ["setting", *(code(run.name) for run in runs)], rows)] if differing else []
    return Section("Comparison", [Text([better(runs), beside(differing)]), _table(runs), *table, Picture(picture, alt)])


def _scores(runs: Sequence[Run]) -> tuple[str, list[tuple[float, int]]]:
    """What is compared, and each run's accuracy and number of images."""
    tests = [run.tests.get(run.best["epoch"]) for run in runs]
    if all(tests):
        return "test accuracy", [(test["accuracy"], test["images"]) for test in tests if test]
    return "validation accuracy", [(run.best["val_accuracy"], run.cluster["counts"]["validation_images"]) for run in runs]


def better(runs: Sequence[Run]) -> str:
    """Which run is best, by how much over the next one, at what cost."""
    what, scores = _scores(runs)
    order = sorted(range(len(runs)), key=lambda index: -scores[index][0])
    (high, images), (low, others) = scores[order[0]], scores[order[1]]
    first, second = (runs[index] for index in order[:2])
    one, other = f"{code(first.name)} ({code(first.model)})", f"{code(second.name)} ({code(second.model)})"
    if high == low:
        return f"{one} and {other} are equal: {percent(high)} {what} in their best epochs."
    lead = f"{points(high - low)} of {what} in the best epoch ({percent(high)} against {percent(low)})"
    doubt = margin(high, min(images, others))
    chance = f", which may be chance (below {points(doubt)})" if high - low < doubt else ""
    if first.cluster["dataset"]["digest"] != second.cluster["dataset"]["digest"]:
        return (
            f"{one} reaches {percent(high)} {what} in its best epoch, {other} {percent(low)}; these are "
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


def beside(differing: Mapping[str, Sequence[str]]) -> str:
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
    header = ["run", "model", "parameters", "workers", "epochs", "best validation accuracy", "test accuracy", rate, "training time"]
    return Table("The runs", header, [_row(run) for run in runs])


def _row(run: Run) -> list[str]:
    test, rate, seconds = run.tests.get(run.best["epoch"]), run.summary.get("images_per_s"), run.summary.get("seconds_training")
    return [
        code(run.name),
        code(run.model),
        f"{run.cluster['parameters']['total']:,}",
        str(len(trains(run.cluster["hosts"]))),
        str(run.last["epoch"]),
        f"{percent(run.best['val_accuracy'])} (epoch {run.best['epoch']})",
        percent(test["accuracy"]) if test else "-",
        f"{rate:,.0f}" if rate else "-",
        spent(seconds) if seconds else "-",
    ]
