"""What the best epoch gets wrong on the test examples, as evaluate.yml measured and drew it: by class, or the sizes of errors."""

from pathlib import Path
from typing import Any

from control.report.blocks import Block, Picture, Table, Text, percent, plain
from control.report.facts import Run
from control.runs import evaluations
from control.text import count

MOST_ROWS = 100


def drawn(run: Run) -> dict[str, Path]:
    """The best epoch's pictures that exist, by key (`evaluations.keyed`)."""
    pattern = evaluations.picture_path(run.folder, run.best["epoch"], "*")
    end = pattern.name.removeprefix("*")
    paths = {path.name.removesuffix(end): path for path in sorted(pattern.parent.glob(pattern.name))}
    return {key: path for key, path in paths.items() if key.startswith(evaluations.KINDS)}


def blocks(run: Run, files: dict[str, str]) -> list[Block]:
    """Pictures and tables, and what has neither; empty if the epoch was not evaluated.

    Args:
        run: the run.
        files: names of the pictures beside the report, by key.
    """
    evaluation = run.evaluation or {"outputs": []}
    outputs = evaluations.keyed(evaluation)
    # A picture outlives the numbers that it was drawn from.
    alone: list[Block] = [_picture(run, key, "", files) for key in files if key not in outputs]
    every = [block for key, output in outputs.items() for block in _of_output(run, key, output, files)]
    lines = [f"{plain(line)}." for line in evaluations.unknown(evaluation)]
    return [*alone, *every, *([Text(lines)] if lines else [])]


def _of_output(run: Run, key: str, output: dict[str, Any], files: dict[str, str]) -> list[Block]:
    epoch, where = run.best["epoch"], f"the test {run.noun}s"
    name = f" for {plain(output['name'])}" if output["name"] else ""
    pictures: list[Block] = [_picture(run, key, name, files)] if key in files else []
    if "confusion" in output:
        rows = evaluations.per_class(output)
        cells = [[plain(name), f"{tested:,}", percent(accuracy), plain(taken)] for name, tested, accuracy, taken in rows[:MOST_ROWS]]
        more = f"; the first {MOST_ROWS} of {len(rows)}" if len(rows) > MOST_ROWS else ""
        header = ["class", f"{run.noun}s", "accuracy", "most often taken for"]
        table = Table(f"Epoch {epoch} by class{name}, on {where}{more}", header, cells)
        sentences = [f"Its probabilities{name} are {evaluations.calibration(output)}."] if "calibration" in output else []
        return [*pictures, table, *([Text(sentences)] if sentences else [])]
    errors = output["errors"]
    sentences = [f"An error{name} is the prediction minus the target; there are {errors['values']:,}."]
    sentences += [f"{count(errors['not_finite'], 'more error')} NaN or infinite."] if errors["not_finite"] else []
    table = Table(f"Errors of epoch {epoch}{name} on {where}", ["errors", "size"], evaluations.error_sizes(output))
    return [Text(sentences), *pictures, table]


def _picture(run: Run, key: str, name: str, files: dict[str, str]) -> Picture:
    epoch, where = run.best["epoch"], f"the test {run.noun}s"
    if key.startswith(evaluations.KINDS[0]):
        return Picture(files[key], f"Confusion matrix of epoch {epoch}{name} on {where}.")
    return Picture(files[key], f"Histogram of epoch {epoch}'s errors{name} on {where}.")
