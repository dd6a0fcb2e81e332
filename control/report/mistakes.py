"""Errors of the best epoch on the test examples, as evaluate.yml measured and drew them: by class, or by size."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from control.common.text import count
from control.report.blocks import Block, Gallery, Picture, Table, Text, percent, plain
from control.report.facts import Run
from control.runs.results import evaluations

MOST_ROWS, LONGEST_NAME = 100, 30


def draw(run: Run, into: Path) -> None:
    """Copy evaluate.yml's pictures into a folder, and draw the examples that the best epoch misclassifies."""
    for key, path in drawn(run).items():
        shutil.copyfile(path, into / run.picture(key))
    for key, output in evaluations.keyed(run.evaluation or {"outputs": []}).items():
        for file, wrong in _files(run, key, output):
            (into / file).parent.mkdir(parents=True, exist_ok=True)
            _draw_example(wrong, into / file)


def drawn(run: Run) -> dict[str, Path]:
    """The best epoch's pictures that exist, by key (`evaluations.keyed`)."""
    pattern = evaluations.picture_path(run.folder, run.best["epoch"], "*")
    end = pattern.name.removeprefix("*")
    paths = {path.name.removesuffix(end): path for path in sorted(pattern.parent.glob(pattern.name))}
    return {key: path for key, path in paths.items() if key.startswith(evaluations.KINDS)}


def _files(run: Run, key: str, output: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    own = "" if key == evaluations.KINDS[0] else f"{key}-"
    for number, one in enumerate(output.get("mistakes", ()), 1):
        of, taken = (evaluations.SPECIAL.sub("_", output["classes"][one[name]])[:LONGEST_NAME] for name in ("of", "taken_for"))
        yield f"misclassified/{run.name}/{own}{number:02}-{of}-taken-for-{taken}.png", one


def _draw_example(picture: dict[str, Any], path: Path) -> None:
    """Write an example, in the form that `worker_files` returns, as a PNG file."""
    from PIL import Image

    height, width, channels = picture["shape"]
    pixels = b"".join(map(base64.b64decode, picture["rows"]))
    Image.frombytes("L" if channels == 1 else "RGB", (width, height), pixels).save(path, "PNG")


def blocks(run: Run) -> list[Block]:
    """Blocks of pictures and tables, with a line on outputs that have neither; empty if the epoch was not evaluated."""
    evaluation, pictures = run.evaluation or {"outputs": []}, drawn(run)
    outputs = evaluations.keyed(evaluation)
    # A picture may outlive the numbers from which it was drawn.
    alone: list[Block] = [_picture(run, key) for key in pictures if key not in outputs]
    every = [block for key, output in outputs.items() for block in _of_output(run, key, output, key in pictures)]
    lines = [f"{plain(line)}." for line in evaluations.unknown(evaluation)]
    return [*alone, *every, *([Text(lines)] if lines else [])]


def _of_output(run: Run, key: str, output: dict[str, Any], is_drawn: bool) -> list[Block]:
    epoch, where = run.best["epoch"], f"the test {run.noun}s"
    name = f" for {plain(output['name'])}" if output["name"] else ""
    pictures: list[Block] = [_picture(run, key, name)] if is_drawn else []
    if "confusion" in output:
        rows = evaluations.per_class(output)
        cells = [[plain(name), f"{tested:,}", percent(accuracy), plain(taken)] for name, tested, accuracy, taken in rows[:MOST_ROWS]]
        more = f"; the first {MOST_ROWS} of {len(rows)}" if len(rows) > MOST_ROWS else ""
        header = ["class", f"{run.noun}s", "accuracy", "most often taken for"]
        table = Table(f"Epoch {epoch} by class{name}, on {where}{more}", header, cells)
        gallery = _gallery(run, key, name, output)
        sentences = [f"Its probabilities{name} are {evaluations.calibration(output)}."] if "calibration" in output else []
        return [*pictures, table, *([Text(sentences)] if sentences else []), *gallery]
    errors = output["errors"]
    sentences = [f"An error{name} is the prediction minus the target; there are {errors['values']:,}."]
    sentences += [f"{count(errors['not_finite'], 'more error')} NaN or infinite."] if errors["not_finite"] else []
    table = Table(f"Errors of epoch {epoch}{name} on {where}", ["errors", "size"], evaluations.error_sizes(output))
    return [Text(sentences), *pictures, table]


def _gallery(run: Run, key: str, name: str, output: dict[str, Any]) -> list[Block]:
    classes, total = output["classes"], sum(map(sum, output["confusion"]))
    wrong = total - sum(row[index] for index, row in enumerate(output["confusion"]))
    shown = [
        (file, f"{plain(classes[one['of']])}, taken for {plain(classes[one['taken_for']])} ({one['probability']:.0%})")
        for file, one in _files(run, key, output)
    ]
    caption = f"Epoch {run.best['epoch']} is wrong about {wrong:,} of {count(total, f'test {run.noun}')}{name}"
    caption += f"; the {len(shown)} of which it is surest" if len(shown) < wrong else ""
    return [Gallery(f"{caption} (in brackets: the probability that the model gives)", shown)] if shown else []


def _picture(run: Run, key: str, name: str = "") -> Picture:
    epoch, where = run.best["epoch"], f"the test {run.noun}s"
    if key.startswith(evaluations.KINDS[0]):
        return Picture(run.picture(key), f"Confusion matrix of epoch {epoch}{name} on {where}.")
    return Picture(run.picture(key), f"Histogram of epoch {epoch}'s errors{name} on {where}.")
