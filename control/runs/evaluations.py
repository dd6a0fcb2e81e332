"""Evaluations on the test examples: the table, evaluations.csv, pictures of confusion matrices and of errors."""

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
LARGEST_IN = 20.0
"""Of the side of a confusion matrix's picture."""
MOST_TICKS = 50
"""Of more classes, not every one is named."""


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
    """For each class that was tested: name, test examples, accuracy, and the class it is most often mistaken for."""
    confusion = np.array(evaluation["confusion"])
    rows = []
    for index, name in enumerate(evaluation["classes"]):
        total, right = int(confusion[index].sum()), int(confusion[index, index])
        if not total:
            continue
        wrong = confusion[index].copy()
        wrong[index] = 0
        taken = f"{evaluation['classes'][int(wrong.argmax())]} ({wrong.max() / total:.1%})" if wrong.max() else "-"
        rows.append((name, total, right / total, taken))
    return rows


def error_sizes(evaluation: dict[str, Any]) -> list[tuple[str, str]]:
    """How large the errors of numbers are, in words and figures."""
    errors = evaluation["errors"]
    named = (
        ("mean (positive: predicted too high)", "mean"),
        ("mean, without sign", "mean_absolute"),
        ("half of them at most", "median_absolute"),
        ("95% of them at most", "absolute_95"),
        ("the largest", "largest"),
    )
    return [(words, f"{errors[name]:,.4g}") for words, name in named]


def show(run: str, evaluated: Sequence[dict[str, Any]], pictures: Sequence[str], marks: Mapping[int, str], what: str) -> str:
    """The table of epochs, which is first, best or last; what the last one gets wrong, where the pictures are; next commands.

    Args:
        run: its name.
        evaluated: evaluations, in the order of the table.
        pictures: paths of their pictures.
        marks: which epoch is the first, best or last.
        what: `images` or `examples`.
    """
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
    parts = [f"{run} on its test {what}", text.table(["epoch", *map(text.metric_name, names), what, "seconds"], rows)]
    new = [("new examples", f"ansible-playbook predict.yml -e run={run} -e input=PATH -e output=FILE.csv")]
    commands = [*new, ("curves", "ansible-playbook tensorboard.yml")]
    if "confusion" in evaluated[-1]:
        classes = [[name, images, text.Number(accuracy, 4), taken] for name, images, accuracy, taken in per_class(evaluated[-1])]
        table = text.table(["class", what, "accuracy", "most often taken for"], classes)
        parts += ["", f"Epoch {evaluated[-1]['epoch']} by class", table, ""]
        parts.append(text.fields([("confusion matrix", picture) for picture in pictures[-3:]]))
    elif "errors" in evaluated[-1]:
        parts += ["", f"Errors of epoch {evaluated[-1]['epoch']}, prediction minus target", text.fields(error_sizes(evaluated[-1])), ""]
        parts.append(text.fields([("histogram", picture) for picture in pictures[-3:]]))
    if what == "images":
        commands.insert(0, ("one image", f"ansible-playbook evaluate.yml -e run={run} -e image=PATH"))
    return "\n".join([*parts, "", text.next_commands(commands)])


def picture_path(run: Path, epoch: int, kind: str) -> Path:
    """Where the picture of an epoch's evaluation is: a `confusion` matrix, or `errors`."""
    return run / "evaluations" / f"{kind}-epoch-{epoch:04d}.png"


def picture(run: Path, evaluation: dict[str, Any]) -> Path | None:
    """Draw the confusion matrix, or the histogram of errors; None if there is neither. The same numbers give the same file."""
    if "confusion" in evaluation:
        path = picture_path(run, evaluation["epoch"], "confusion")
        _confusion(path, run.name, evaluation)
        return path
    if "errors" in evaluation:
        from control import plots

        path = picture_path(run, evaluation["epoch"], "errors")
        plots.errors(evaluation["errors"], path, f"{run.name}, epoch {evaluation['epoch']}: errors on the test examples")
        return path
    return None


def _confusion(path: Path, name: str, evaluation: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    confusion = np.array(evaluation["confusion"])
    # A pair of dollar signs would be a formula.
    classes = [name.replace("$", r"\$") for name in evaluation["classes"]]
    # A class that was not tested stays white.
    shares = confusion / np.maximum(1, confusion.sum(axis=1, keepdims=True))
    side, every = min(LARGEST_IN, max(5.0, 0.55 * len(classes) + 2.5)), -(-len(classes) // MOST_TICKS)
    figure, axes = plt.subplots(figsize=(side, side), layout="constrained")
    axes.imshow(shares, cmap="Greys", vmin=0, vmax=1)
    if len(classes) <= 30:
        _numbers(axes, shares)
    axes.set_xticks(range(0, len(classes), every), classes[::every], rotation=45, ha="right")
    axes.set_yticks(range(0, len(classes), every), classes[::every])
    axes.set_xlabel("taken for")
    axes.set_ylabel("is")
    accuracy = np.trace(confusion) / confusion.sum()
    axes.set_title(f"{name}, epoch {evaluation['epoch']}: test accuracy {accuracy:.2%}\n(percent of each class)")
    with replacing(path) as part:
        figure.savefig(part, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _numbers(axes: Any, shares: np.ndarray) -> None:
    for row, column in np.ndindex(*shares.shape):
        color = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{100 * shares[row, column]:.0f}", ha="center", va="center", color=color, fontsize=9)
