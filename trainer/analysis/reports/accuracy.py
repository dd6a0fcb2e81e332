"""How accuracy changed, which epoch is the most promising, what the test images say. Pure functions.

Overfitting is Prechelt's generalisation loss: by how many percent the last validation loss lies above the lowest
(Early Stopping - But When?, Neural Networks: Tricks of the Trade, LNCS 1524, 1998).
"""

import math
from dataclasses import dataclass
from typing import Any

from trainer.analysis.reports.blocks import Block, Picture, Section, Table, Text
from trainer.analysis.reports.facts import Run
from trainer.analysis.reports.words import code, moment, moved, percent, points
from trainer.analysis.text import count, listed

OVERFITTING = 5.0
"""Percent of generalisation loss from which a run is said to overfit; Prechelt's GL_5."""
RULE = (
    f"The rule: a run overfits when its last validation loss is more than {OVERFITTING:g}% above its lowest while the training loss "
    "went on falling from there (Prechelt 1998, generalisation loss)."
)
PROMISE = "The rule: the highest validation accuracy, the earliest of equals, as in summary.json."


def sections(run: Run, level: int, picture: str, confusion: str | None) -> list[Section]:
    """Course of the training, most promising epoch, test images.

    Args:
        run: the run.
        level: of the headings.
        picture: file of the curves.
        confusion: file of the best epoch's confusion matrix, where there is one.
    """
    losses = [Text([overfitting(run), RULE])] if len(run.history) > 1 else []
    curves = Picture(
        picture,
        f"Curves of accuracy and loss over the {count(len(run.history), 'epoch')} of {run.name}; epoch {run.best['epoch']} is marked.",
    )
    shown: list[Block] = [Picture(confusion, f"Confusion matrix of epoch {run.best['epoch']} on the test images.")] if confusion else []
    return [
        Section("How accuracy changed", [Text(course(run)), *losses, curves, _table(run)], level),
        Section("The most promising epoch", [Text([*promising(run), PROMISE])], level),
        Section("Test images", [*tested(run), *shown], level),
    ]


def middle(run: Run) -> dict[str, Any]:
    """Row of the middle epoch, the earlier of two."""
    return run.history[(len(run.history) - 1) // 2]


def course(run: Run) -> list[str]:
    """How training and validation accuracy changed, and where they were farthest apart."""
    if len(run.history) == 1:
        only = f"training accuracy {percent(run.first['accuracy'])}, validation accuracy {percent(run.first['val_accuracy'])}"
        return [f"Only epoch {run.first['epoch']} is finished: {only}. One epoch shows no course; train longer: {_longer(run)}."]
    wide = max(run.history, key=lambda row: (abs(row["accuracy"] - row["val_accuracy"]), -row["epoch"]))
    above = "training" if wide["accuracy"] > wide["val_accuracy"] else "validation"
    return [
        _moved(run, "Training accuracy", "accuracy"),
        _moved(run, "Validation accuracy", "val_accuracy"),
        f"They were farthest apart in epoch {wide['epoch']}: {points(wide['accuracy'] - wide['val_accuracy'])}, {above} above.",
        "Training accuracy is the mean over an epoch's steps, while the weights still change; validation is measured at its end.",
    ]


def _moved(run: Run, what: str, key: str) -> str:
    through = f" through {percent(middle(run)[key])} (epoch {middle(run)['epoch']})" if len(run.history) > 2 else ""
    begin, end = f"{percent(run.first[key])} (epoch {run.first['epoch']})", f"{percent(run.last[key])} (epoch {run.last['epoch']})"
    return f"{what} {moved(run.first[key], run.last[key])} from {begin}{through} to {end}."


@dataclass(frozen=True)
class Loss:
    """How the loss of a run went on from its lowest validation loss."""

    low: dict[str, Any]
    """Row of the lowest validation loss, the earliest of equals."""
    last: dict[str, Any]

    @property
    def rise(self) -> float:
        """Prechelt's generalisation loss in percent."""
        return (self.last["val_loss"] / self.low["val_loss"] - 1) * 100 if self.low["val_loss"] else math.inf

    @property
    def overfits(self) -> bool:
        """By `RULE`."""
        return self.low is not self.last and self.rise > OVERFITTING and self.last["loss"] < self.low["loss"]


def loss(run: Run) -> Loss:
    """Of all finished epochs."""
    return Loss(min(run.history, key=lambda row: (row["val_loss"], row["epoch"])), run.last)


def overfitting(run: Run) -> str:
    """Whether the run overfits, by `RULE`, and since which epoch."""
    found = loss(run)
    low, last = found.low, found.last
    if low is last:
        return f"No overfitting: validation loss is at its lowest, {low['val_loss']:.4f}, in the last epoch."
    fell = "fell" if last["loss"] < low["loss"] else "did not fall"
    losses = f"validation loss was lowest in epoch {low['epoch']} ({low['val_loss']:.4f}) and is {found.rise:.1f}% above that at the end"
    train = f"training loss {fell} from {low['loss']:.4f} to {last['loss']:.4f}"
    if found.overfits:
        return f"The model overfits after epoch {low['epoch']}: {losses}, while {train}."
    return f"No overfitting by the rule: {losses}; meanwhile {train}."


def promising(run: Run) -> list[str]:
    """The best epoch, its lead over the last and the next best, and how much of it chance may be."""
    best, others = run.best, [row for row in run.history if row is not run.best]
    said = [f"Epoch {best['epoch']} is the most promising, with a validation accuracy of {percent(best['val_accuracy'])}."]
    if not others:
        return [*said, "It is the only one."]
    following = max(others, key=lambda row: (row["val_accuracy"], -row["epoch"]))
    leads = [f"{points(best['val_accuracy'] - following['val_accuracy'])} above the next best ({_named(following)})"]
    if run.last not in (best, following):
        leads.append(f"{points(best['val_accuracy'] - run.last['val_accuracy'])} above the last ({_named(run.last)})")
    said.append(f"It lies {listed(leads)}.")
    if best is run.last:
        said.append(f"It is the last one, so accuracy may still have been rising; train longer: {_longer(run)}.")
    return [*said, chance(best["val_accuracy"], run.cluster["counts"]["validation_images"], "validation image")]


def _named(row: dict[str, Any]) -> str:
    return f"epoch {row['epoch']}, {percent(row['val_accuracy'])}"


def _longer(run: Run) -> str:
    return code(f"ansible-playbook train.yml -e run={run.name} -e epochs={run.last['epoch'] * 2}")


def margin(accuracy: float, images: int) -> float:
    """Difference of two accuracies (shares) below which chance may have made it: two standard errors of a difference.

    Binomial, each accuracy of so many images of its own; on the same images chance makes less, so this is on the safe side.
    """
    return 2 * math.sqrt(2 * accuracy * (1 - accuracy) / images)


def chance(accuracy: float, images: int, what: str) -> str:
    """The sentence for `margin`."""
    return f"With {count(images, what)}, differences below {points(margin(accuracy, images))} may be chance (two binomial standard errors)."


def _table(run: Run) -> Table:
    marks, half = dict(run.marked), middle(run)["epoch"]
    if len(run.history) > 2:
        marks[half] = f"middle, {marks[half]}" if half in marks else "middle"
    rows = [row for row in run.history if row["epoch"] in marks]
    header = ["epoch", "which", "loss", "accuracy", "validation loss", "validation accuracy", "learning rate", "images/s"]
    cells = [
        [
            str(row["epoch"]),
            marks[row["epoch"]],
            f"{row['loss']:.4f}",
            percent(row["accuracy"]),
            f"{row['val_loss']:.4f}",
            percent(row["val_accuracy"]),
            f"{row['learning_rate']:g}",
            f"{row['images_per_s']:,.0f}",
        ]
        for row in rows
    ]
    some = f"First, middle, best and last of {count(len(run.history), 'epoch')}; all are in history.csv"
    return Table(some if len(rows) < len(run.history) else "All epochs, as in history.csv", header, cells)


def tested(run: Run) -> list[Block]:
    """What the test images say of the first, best and last epoch, and what is missing."""
    if not run.cluster["dataset"]["test"]:
        return [Text(["The dataset has no test images."])]
    found: list[Block] = [Text(said)] if (said := test_sentences(run)) else []
    lacking = [Text(said)] if (said := untested(run)) else []
    return [*found, *([_test_table(run)] if found else []), *lacking]


def test_sentences(run: Run) -> list[str]:
    """Test accuracy of the epochs that were evaluated; empty when none of them was."""
    there = [epoch for epoch in run.marked if epoch in run.tests]
    if not there:
        return []
    each = [f"{percent(run.tests[epoch]['accuracy'])} in epoch {epoch} ({run.marked[epoch]})" for epoch in there]
    said = [f"On {count(run.tests[there[-1]]['images'], 'test image')}, which training never saw, accuracy is {listed(each)}."]
    best = run.tests.get(run.best["epoch"])
    if best is None:
        return said
    last = run.tests.get(run.last["epoch"])
    if last is not None and run.best is not run.last:
        said.append(f"The best epoch is {_against(best['accuracy'], last['accuracy'])} the last.")
    validation = _against(best["accuracy"], run.best["val_accuracy"])
    said.append(f"The best epoch's test accuracy is {validation} its validation accuracy, by which it was chosen.")
    return [*said, chance(best["accuracy"], best["images"], "test image")]


def _against(one: float, other: float) -> str:
    if points(one - other) == points(0):
        return "level with"
    return f"{points(one - other)} {'above' if one > other else 'below'}"


def _test_table(run: Run) -> Table:
    header = ["epoch", "which", "test loss", "test accuracy", "validation accuracy", "images", "evaluated at"]
    validation = {row["epoch"]: row["val_accuracy"] for row in run.history}
    rows = [
        [
            str(epoch),
            mark,
            f"{run.tests[epoch]['loss']:.4f}",
            percent(run.tests[epoch]["accuracy"]),
            percent(validation[epoch]),
            f"{run.tests[epoch]['images']:,}",
            moment(run.tests[epoch]["evaluated_at"]),
        ]
        for epoch, mark in run.marked.items()
        if epoch in run.tests
    ]
    return Table("The test images", header, rows)


def untested(run: Run) -> list[str]:
    """What is missing of the tests, and the command that makes it."""
    missing, can = run.untested(), run.testable()
    said = []
    if can:
        named = listed([f"{epoch} ({run.marked[epoch]})" for epoch in can])
        said.append(f"Not evaluated on the test images yet: epoch {named}. This does it: {code(evaluation(run))}.")
    lost = [epoch for epoch in missing if epoch not in can]
    if lost:
        named = listed([f"{epoch} ({run.marked[epoch]})" for epoch in lost])
        said.append(f"Epoch {named} can't be evaluated: there is no snapshot of it in checkpoints/.")
    return said


def evaluation(run: Run) -> str:
    """The command that evaluates what is missing."""
    return f"ansible-playbook evaluate.yml -e run={run.name} -e epoch={','.join(map(str, run.testable()))}"


def short(run: Run) -> list[str]:
    """Test accuracy and overfitting in a sentence each."""
    best, found = run.tests.get(run.best["epoch"]), loss(run)
    said = [f"Its best epoch reaches {percent(best['accuracy'])} on {count(best['images'], 'test image')}."] if best else []
    if len(run.history) > 1:
        said.append(
            f"It overfits after epoch {found.low['epoch']}." if found.overfits else "It does not overfit, by the rule stated below."
        )
    return said
