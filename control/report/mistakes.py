"""What the best epoch gets wrong on the test examples, as evaluate.yml measured and drew it: by class, or the sizes of errors."""

from pathlib import Path

from control.report.blocks import Block, Picture, Table, Text, percent, plain
from control.report.facts import Run
from control.runs import evaluations
from control.text import count

KINDS = ("confusion", "errors")
"""Of pictures."""
MOST_ROWS = 100


def drawn(run: Run) -> dict[str, Path]:
    """The best epoch's pictures that exist, by kind."""
    paths = {kind: evaluations.picture_path(run.folder, run.best["epoch"], kind) for kind in KINDS}
    return {kind: path for kind, path in paths.items() if path.is_file()}


def blocks(run: Run, files: dict[str, str]) -> list[Block]:
    """Pictures and tables; empty if the epoch was not evaluated, or is judged by its metrics alone.

    Args:
        run: the run.
        files: names of the pictures beside the report, by kind.
    """
    epoch, where = run.best["epoch"], f"the test {run.noun}s"
    titles = {"confusion": f"Confusion matrix of epoch {epoch} on {where}.", "errors": f"Histogram of epoch {epoch}'s errors on {where}."}
    pictures: list[Block] = [Picture(files[kind], titles[kind]) for kind in KINDS if kind in files]
    evaluation = run.evaluation
    if "confusion" in evaluation:
        rows = evaluations.per_class(evaluation)
        cells = [[plain(name), f"{tested:,}", percent(accuracy), plain(taken)] for name, tested, accuracy, taken in rows[:MOST_ROWS]]
        more = f"; the first {MOST_ROWS} of {len(rows)}" if len(rows) > MOST_ROWS else ""
        header = ["class", f"{run.noun}s", "accuracy", "most often taken for"]
        return [*pictures, Table(f"Epoch {epoch} by class, on {where}{more}", header, cells)]
    if "errors" in evaluation:
        errors = evaluation["errors"]
        sentences = [f"An error is the prediction minus the target; there are {errors['values']:,}."]
        sentences += [f"{count(errors['not_finite'], 'more error')} NaN or infinite."] if errors["not_finite"] else []
        table = Table(f"Errors of epoch {epoch} on {where}", ["errors", "size"], evaluations.error_sizes(evaluation))
        return [Text(sentences), *pictures, table]
    return pictures
