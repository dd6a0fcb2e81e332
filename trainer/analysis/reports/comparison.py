"""Several runs beside each other: which model is better, and by how much. Pure functions."""

from collections.abc import Sequence

from trainer.analysis.reports.accuracy import margin
from trainer.analysis.reports.blocks import Picture, Section, Table, Text
from trainer.analysis.reports.facts import Run
from trainer.analysis.reports.words import code, percent, points, spent
from trainer.analysis.text import listed


def section(runs: Sequence[Run], picture: str) -> Section:
    """The table, the sentence, the curves."""
    alt = f"Curves of validation accuracy of {listed([run.name for run in runs])} over their epochs."
    return Section("Comparison", [Text([better(runs), *differences(runs)]), _table(runs), Picture(picture, alt)])


def _scores(runs: Sequence[Run]) -> tuple[str, list[tuple[float, int]]]:
    """What is compared, and of each run the accuracy and how many images it is of."""
    tests = [run.tests.get(run.best["epoch"]) for run in runs]
    if all(tests):
        return "test accuracy", [(test["accuracy"], test["images"]) for test in tests if test]
    return "validation accuracy", [(run.best["val_accuracy"], run.cluster["counts"]["validation_images"]) for run in runs]


def better(runs: Sequence[Run]) -> str:
    """Which run is the best, by how much over the next one, at what cost."""
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
    better_than = f"{one} is better than {other} by" if len(runs) == 2 else f"{one} is the best of {len(runs)} runs, before {other} by"
    return f"{better_than} {lead}{chance}; {_cost(first, second)}."


def _cost(run: Run, other: Run) -> str:
    """What the better one needs, as multiples of the other."""
    parameters = run.cluster["parameters"]["total"] / other.cluster["parameters"]["total"]
    cost = [f"it has {parameters:.2f} times its parameters"]
    if run.summary.get("images_per_s") and other.summary.get("images_per_s"):
        cost.append(f"trained {run.summary['images_per_s'] / other.summary['images_per_s']:.2f} times as many images a second")
    return listed(cost)


def differences(runs: Sequence[Run]) -> list[str]:
    """What else differs and keeps the runs from being compared by their models alone."""
    seen = {
        "dataset": {run.cluster["dataset"]["digest"] for run in runs},
        "number of training images": {run.cluster["counts"]["train_images"] for run in runs},
        "number of epochs": {run.last["epoch"] for run in runs},
        "global batch": {run.cluster["counts"]["global_batch"] for run in runs},
        "number of workers": {len(run.cluster["hosts"]) for run in runs},
        "optimizer": {str(run.config["optimizer"]) for run in runs},
        "reduction": {str(run.config["reduction"] | {"name": run.reduction}) for run in runs},
        "seed": {run.config["seed"] for run in runs},
    }
    found = [name for name, values in seen.items() if len(values) > 1]
    return (
        [f"Beside the model they differ in: {listed(found)}."]
        if found
        else ["All else that is compared here was the same: " + listed(list(seen)) + "."]
    )


def _table(runs: Sequence[Run]) -> Table:
    header = ["run", "model", "parameters", "workers", "epochs", "best validation accuracy", "test accuracy", "images/s", "time"]
    return Table("The runs", header, [_row(run) for run in runs])


def _row(run: Run) -> list[str]:
    test, rate, seconds = run.tests.get(run.best["epoch"]), run.summary.get("images_per_s"), run.summary.get("seconds_total")
    return [
        code(run.name),
        code(run.model),
        f"{run.cluster['parameters']['total']:,}",
        str(len(run.cluster["hosts"])),
        str(run.last["epoch"]),
        f"{percent(run.best['val_accuracy'])} (epoch {run.best['epoch']})",
        percent(test["accuracy"]) if test else "-",
        f"{rate:,.0f}" if rate else "-",
        spent(seconds) if seconds else "-",
    ]
