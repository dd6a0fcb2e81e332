"""Evaluations on the test examples: the table, evaluations.csv, pictures of confusion matrices and of errors."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from control.common import text
from control.remote.worker_files import evaluation
from control.runs.results import metric_text
from control.runs.results.evaluation_table import FIRST, LAST
from control.runs.results.run_folder import RunFolder
from trainer.common.files import replacing, sha256_file, write_json
from trainer.common.safe_text import printable
from trainer.rundir import layout
from trainer.rundir.schemas import metric_values

LARGEST_IN = 20.0
"""Maximum side of a confusion matrix's picture, inches."""
MOST_TICKS = 50
"""Most classes for which an axis names every class."""
MOST_DRAWN = 20
"""Most letters of a class's name in a picture."""
TITLE_PER_IN = 7.5
"""Letters of a picture's title for each inch of its width."""
KINDS = ("confusion", "errors")
"""Kinds of an output's errors, and of their picture."""
RARE = 0.01
"""Smallest share of the examples for which a probability gets a line: fewer examples show little."""
SPECIAL, LONGEST_KEY = re.compile(r"[^A-Za-z0-9.]+"), 60
MOST_NAMED, MOST_SHOWN = 5, 60
"""Most outputs in a line, and most characters of an output's name."""


def take(run: RunFolder) -> list[str]:
    """Record new evaluations by a run's evaluators; return warnings about those that can't be recorded."""
    history, table = run.history, run.evaluations
    last, warnings, new = max((row["epoch"] for row in history), default=0), [], []
    columns, recorded = table.read_columns()
    # A metric that is no number is left out of its row.
    known = {*FIRST, *LAST, *(name for row in history for name in metric_values(row))}
    for host in run.evaluators:
        for path in sorted((layout.part_of(run.path, host) / layout.EVALUATIONS).glob("epoch-*.json")):
            one = evaluation(path.read_text(encoding="utf-8"))
            names = [*FIRST, *one["metrics"], *LAST]
            # An epoch after the last one belongs to an attempt that was not continued.
            if one["epoch"] > last or (one["epoch"], one["evaluated_at"]) in recorded or not _is_of(run.path, one):
                continue
            columns = columns or names
            if not {*names} <= {*columns, *known}:
                warnings.append(f"{host}: {path.name} is not recorded in {table.path.name}: it has other metrics than the rows there")
                continue
            new.append(one)
    if new:
        table.append(sorted(new, key=lambda one: int(one["epoch"])))
        for one in new:
            write_json(layout.record_path(run.path / "evaluate", one["epoch"]), one)
            if one["epoch"] in run.marks:
                draw(run, one)
    return warnings


def _is_of(run: Path, evaluated: dict[str, Any]) -> bool:
    """Return whether an evaluation belongs to the run's snapshot of its epoch, if the run still has that snapshot."""
    snapshot = layout.snapshot_path(run, evaluated["epoch"])
    return not snapshot.is_file() or sha256_file(snapshot) == evaluated.get("snapshot_sha256")


def keyed(evaluation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Outputs with a confusion matrix or a histogram of errors, by a key for file names: the kind, and the output's name if any.

    A key has only letters, digits, dots and `_`.
    """
    drawn = [(output, next(kind for kind in KINDS if kind in output)) for output in evaluation["outputs"] if "why" not in output]
    named = ["_".join([kind, *([SPECIAL.sub("_", output["name"])[:LONGEST_KEY]] if output["name"] else [])]) for output, kind in drawn]
    return dict(zip(text.distinct(named), [output for output, _ in drawn], strict=True))


def unknown(evaluation: dict[str, Any]) -> list[str]:
    """Lines on outputs without a table of errors, one per reason."""
    names: dict[str, list[str]] = {}
    for output in evaluation["outputs"]:
        if "why" in output:
            names.setdefault(output["why"], []).append(output["name"])
    return [f"No table of errors{f' for {_listed(those)}' if any(those) else ''}: {why}" for why, those in names.items()]


def _listed(names: Sequence[str]) -> str:
    more = [text.count(len(names) - MOST_NAMED, "more output")] if len(names) > MOST_NAMED else []
    return text.listed([*(printable(name, MOST_SHOWN) for name in names[:MOST_NAMED]), *more])


def per_class(output: dict[str, Any]) -> list[tuple[str, int, float, str]]:
    """Rows on the tested classes: name, test examples, accuracy, and the class with which it is most often confused."""
    confusion = np.array(output["confusion"])
    rows = []
    for index, name in enumerate(output["classes"]):
        total, right = int(confusion[index].sum()), int(confusion[index, index])
        if not total:
            continue
        wrong = confusion[index].copy()
        wrong[index] = 0
        taken = f"{output['classes'][int(wrong.argmax())]} ({wrong.max() / total:.1%})" if wrong.max() else "-"
        rows.append((name, total, right / total, taken))
    return rows


def error_sizes(output: dict[str, Any]) -> list[tuple[str, str]]:
    """Text and figures on the size of the errors of numbers."""
    named = (
        ("mean (positive: predicted too high)", "mean"),
        ("mean, without sign", "mean_absolute"),
        ("half of them at most", "median_absolute"),
        ("95% of them at most", "absolute_95"),
        ("the largest", "largest"),
    )
    return [(words, f"{output['errors'][name]:,.4g}") for words, name in named]


def calibration(output: dict[str, Any]) -> str:
    """Differences between an output's probabilities and the observed frequencies."""
    figures = output["calibration"]
    return f"{100 * figures['error']:.1f} points off on average (expected calibration error); Brier score {figures['brier']:.4f}"


def show(run: RunFolder, evaluated: Sequence[dict[str, Any]], pictures: Sequence[Mapping[str, str]]) -> str:
    """The table of epochs, the errors of the best epoch (else the last), the paths of the pictures, and the next commands.

    Args:
        run: the run.
        evaluated: evaluations, in the order of the table.
        pictures: for each evaluation, paths of its pictures by key.
    """
    marks, what = run.marks, f"{run.noun}s"
    best = [place for place, row in enumerate(evaluated) if "best" in marks.get(row["epoch"], "").split(", ")]
    detailed = evaluated[best[0] if best else -1]
    drawn = [pictures[place] for place in sorted({*best, *range(len(pictures))[-3:]})]
    names = list(dict.fromkeys(name for row in evaluated for name in row["metrics"]))
    rows = [
        [
            f"{row['epoch']} ({marks[row['epoch']]})" if row["epoch"] in marks else str(row["epoch"]),
            *(text.Number(row["metrics"][name], 4) if name in row["metrics"] else "-" for name in names),
            row["images"],
            text.Number(row["seconds"], 1),
        ]
        for row in evaluated
    ]
    so_far = "; it may still train: first, best and last are of the epochs so far" if run.summary.under_way else ""
    parts = [f"{run.name} on its test {what}{so_far}", text.table(["epoch", *map(metric_text.metric_name, names), what, "seconds"], rows)]
    new = [("new examples", f"ansible-playbook predict.yml -e run={run.name} -e input=PATH -e output=FILE.csv")]
    commands = [*new, ("curves", "ansible-playbook tensorboard.yml")]
    for key, output in keyed(detailed).items():
        parts += ["", *_wrong(output, detailed["epoch"], [paths[key] for paths in drawn if key in paths], what)]
    if unclear := unknown(detailed):
        parts += ["", *unclear]
    if what == "images":
        commands.insert(0, ("one image", f"ansible-playbook evaluate.yml -e run={run.name} -e image=PATH"))
    return "\n".join([*parts, "", text.next_commands(commands)])


def _wrong(output: dict[str, Any], epoch: int, pictures: Sequence[str], what: str) -> list[str]:
    """Text on an output's errors: a title, a table, the paths of its pictures."""
    of = f" for {printable(output['name'], MOST_SHOWN)}" if output["name"] else ""
    if "confusion" in output:
        classes = [[name, images, text.Number(accuracy, 4), taken] for name, images, accuracy, taken in per_class(output)]
        table = text.table(["class", what, "accuracy", "most often taken for"], classes)
        more = [f"Its probabilities: {calibration(output)}", ""] if "calibration" in output else []
        return [f"Epoch {epoch} by class{of}", table, "", *more, text.fields([("confusion matrix", picture) for picture in pictures])]
    title = f"Errors of epoch {epoch}{of}, prediction minus target"
    return [title, text.fields(error_sizes(output)), "", text.fields([("histogram", picture) for picture in pictures])]


def picture_path(run: Path, epoch: int, key: str) -> Path:
    """Path of a picture of an epoch's evaluation; its key is one of `keyed`."""
    return run / "evaluations" / f"{key}-epoch-{epoch:04d}.png"


def draw(run: RunFolder, evaluation: dict[str, Any]) -> dict[str, Path]:
    """Draw each output's confusion matrix or histogram of errors, by key. The same numbers give the same files."""
    from control.runs.results import run_plots

    paths = {}
    for key, output in keyed(evaluation).items():
        # A pair of dollar signs would be a formula.
        name = printable(output["name"], MOST_SHOWN).replace("$", r"\$")
        title = ", ".join([run.name, *([name] if name else []), f"epoch {evaluation['epoch']}"])
        paths[key] = picture_path(run.path, evaluation["epoch"], key)
        if "confusion" in output:
            _confusion(paths[key], title, output)
        else:
            run_plots.errors(output["errors"], paths[key], f"{title}: errors on the test examples")
    return paths


def _confusion(path: Path, title: str, output: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    confusion = np.array(output["confusion"])
    classes = [shortened(name).replace("$", r"\$") for name in output["classes"]]
    # A class that was not tested stays white.
    shares = confusion / np.maximum(1, confusion.sum(axis=1, keepdims=True))
    side, every = min(LARGEST_IN, max(5.0, 0.55 * len(classes) + 2.5)), -(-len(classes) // MOST_TICKS)
    panels = 2 if "calibration" in output else 1
    figure, panes = plt.subplots(1, panels, figsize=(panels * side, side), layout="constrained", squeeze=False)
    axes = panes[0][0]
    axes.imshow(shares, cmap="Greys", vmin=0, vmax=1)
    if len(classes) <= 30:
        _numbers(axes, shares)
    axes.set_xticks(range(0, len(classes), every), classes[::every], rotation=45, ha="right")
    axes.set_yticks(range(0, len(classes), every), classes[::every])
    axes.set_xlabel("taken for")
    axes.set_ylabel("is")
    accuracy = np.trace(confusion) / confusion.sum()
    axes.set_title(f"{textwrap.fill(f'{title}: test accuracy {accuracy:.2%}', int(TITLE_PER_IN * side))}\n(percent of each class)")
    if "calibration" in output:
        _reliability(panes[0][1], output["calibration"], classes[1])
    with replacing(path) as part:
        figure.savefig(part, dpi=110, metadata={"Software": None})
    plt.close(figure)


def shortened(name: str) -> str:
    """A class name shortened to fit in a picture; both ends are kept, so that similar names stay distinct."""
    return name if len(name) <= MOST_DRAWN else f"{name[: MOST_DRAWN // 2]}\N{HORIZONTAL ELLIPSIS}{name[1 - MOST_DRAWN // 2 :]}"


def _reliability(axes: Any, figures: Mapping[str, Any], name: str) -> None:
    """Draw the observed frequency of predictions against their probability; on the diagonal, both are equal."""
    shown = [index for index, count in enumerate(figures["counts"]) if count]
    largest = max(figures["counts"])
    axes.plot((0, 1), (0, 1), color="#999999", linewidth=1, linestyle="--")
    predicted, observed = ([figures[key][index] for index in shown] for key in ("predicted", "observed"))
    often = [index for index in shown if figures["counts"][index] >= RARE * sum(figures["counts"])]
    axes.plot(*([figures[key][index] for index in often] for key in ("predicted", "observed")), color="black", linewidth=1)
    sizes = [20 + 180 * figures["counts"][index] / largest for index in shown]
    axes.scatter(predicted, observed, s=sizes, color="black", alpha=0.6, linewidths=0)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xlabel(f"predicted probability of {name}")
    axes.set_ylabel(f"share of the examples\nthat are {name}")
    axes.set_title(
        f"calibration error {100 * figures['error']:.1f} points, Brier score {figures['brier']:.3f}\n(a larger dot is more examples)"
    )


def _numbers(axes: Any, shares: np.ndarray) -> None:
    for row, column in np.ndindex(*shares.shape):
        color = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{100 * shares[row, column]:.0f}", ha="center", va="center", color=color, fontsize=9)
