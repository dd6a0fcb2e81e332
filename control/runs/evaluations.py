"""Evaluations on the test images: the table, evaluations.csv, pictures of confusion matrices."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from control import text
from trainer.files import replacing, write_text

FIRST, LAST = ("epoch", "split"), ("images", "seconds", "evaluated_at")
"""Columns of evaluations.csv; the model's metrics stand between them."""


def append(path: Path, evaluations: Sequence[dict[str, Any]]) -> None:
    """Append one row per evaluation, in order; the file is complete at all times."""
    stream = io.StringIO()
    # The same run has the same metrics, so rows fit the header that is there.
    writer = csv.DictWriter(stream, [*FIRST, *evaluations[0]["metrics"], *LAST], extrasaction="ignore", lineterminator="\n")
    if not path.is_file():
        writer.writeheader()
    writer.writerows({**row, **row["metrics"]} for row in evaluations)
    write_text(path, (path.read_text(encoding="utf-8") if path.is_file() else "") + stream.getvalue())


def forget(path: Path, after: int) -> None:
    """Drop evaluations of epochs after `after`: those epochs are trained again, and their snapshots written again."""
    if path.is_file():
        header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not (epoch := line.partition(",")[0]).isdecimal() or int(epoch) <= after]
        if len(kept) < len(lines):
            write_text(path, "".join([header, *kept]))


def accuracy_by_epoch(path: Path) -> dict[int, float]:
    """Test accuracy by epoch, from the latest evaluation of each; empty if there is no file, or the model has no accuracy."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as stream:
        return {int(row["epoch"]): float(row["accuracy"]) for row in csv.DictReader(stream) if row["split"] == "test" and "accuracy" in row}


def per_class(evaluation: dict[str, Any]) -> list[tuple[str, int, float, str]]:
    """For each class: name, test images, accuracy, and the class it is most often mistaken for."""
    confusion = np.array(evaluation["confusion"])
    rows = []
    for index, name in enumerate(evaluation["classes"]):
        total, right = int(confusion[index].sum()), int(confusion[index, index])
        wrong = confusion[index].copy()
        wrong[index] = 0
        taken = f"{evaluation['classes'][int(wrong.argmax())]} ({wrong.max() / total:.1%})" if wrong.max() else "-"
        rows.append((name, total, right / total, taken))
    return rows


def show(run: str, evaluated: Sequence[dict[str, Any]], pictures: Sequence[str], marks: Mapping[int, str]) -> str:
    """The table of epochs, which is first, best or last; of a classifier the last one's classes, where the pictures are; next commands."""
    names = list(evaluated[-1]["metrics"])
    rows = [
        [
            f"{row['epoch']} ({marks[row['epoch']]})" if row["epoch"] in marks else str(row["epoch"]),
            *(text.Number(row["metrics"][name], 4) for name in names),
            row["images"],
            text.Number(row["seconds"], 1),
        ]
        for row in evaluated
    ]
    classifies = "confusion" in evaluated[-1]
    what = "images" if classifies else "examples"
    parts = [f"{run} on its test {what}", text.table(["epoch", *map(text.metric_name, names), what, "seconds"], rows)]
    commands = [("curves", "ansible-playbook tensorboard.yml")]
    if classifies:
        classes = [[name, images, text.Number(accuracy, 4), taken] for name, images, accuracy, taken in per_class(evaluated[-1])]
        table = text.table(["class", "images", "accuracy", "most often taken for"], classes)
        parts += ["", f"Epoch {evaluated[-1]['epoch']} by class", table, ""]
        parts.append(text.fields([("confusion matrix", picture) for picture in pictures[-3:]]))
        commands.insert(0, ("one image", f"ansible-playbook evaluate.yml -e run={run} -e image=PATH"))
    return "\n".join([*parts, "", text.next_commands(commands)])


def picture(run: Path, evaluation: dict[str, Any]) -> Path:
    """Draw the confusion matrix; the same numbers give the same file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    confusion, classes = np.array(evaluation["confusion"]), evaluation["classes"]
    shares = confusion / confusion.sum(axis=1, keepdims=True)
    side = max(5.0, 0.55 * len(classes) + 2.5)
    figure, axes = plt.subplots(figsize=(side, side), layout="constrained")
    axes.imshow(shares, cmap="Greys", vmin=0, vmax=1)
    if len(classes) <= 30:
        _numbers(axes, shares)
    axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right")
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xlabel("taken for")
    axes.set_ylabel("is")
    axes.set_title(
        f"{run.name}, epoch {evaluation['epoch']}: test accuracy {evaluation['metrics']['accuracy']:.2%}\n(percent of each class)"
    )
    path = run / "evaluations" / f"confusion-epoch-{evaluation['epoch']:04d}.png"
    with replacing(path) as part:
        figure.savefig(part, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return path


def _numbers(axes: Any, shares: np.ndarray) -> None:
    for row, column in np.ndindex(*shares.shape):
        color = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{100 * shares[row, column]:.0f}", ha="center", va="center", color=color, fontsize=9)
