"""One batch of a dataset as training gets it: images with their classes as pictures, columns as a table. Needs only the configuration."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from control.common import command_line, project, text
from control.common.operator_variables import integer
from control.common.plan import Plan
from control.common.task import Task
from control.remote import trainer_process
from control.remote.published import Published
from control.runs.planning import plan_command
from control.runs.planning.plan_request import Inventory, OperatorRequest
from control.runs.show import plan_text
from trainer.common.files import replacing
from trainer.common.plain_values import from_plain
from trainer.common.safe_text import printable

COMMAND = "playbooks/visualize"


def plan(task: Task) -> dict[str, Any]:
    """Check and resolve the options. Returns the facts `plan` and `batch_wanted`."""
    options = command_line.operator_options(COMMAND, task.task_vars)
    wanted = {"images": integer("images", options.get("images", 32)), "step": integer("step", options.get("step", 1))}
    asked: dict[str, Any] = {key: options[key] for key in ("config", "dataset", "model", "set", "allow_bad_images") if key in options}
    asked["run"] = "picture"
    host = Inventory(hosts=plan_command.hosts(task.task_vars)[:1])
    plan = plan_command.make_plan(OperatorRequest.of(asked), host, "pictures", 1, task.arguments["packs"], not task.check_mode)
    return {"ansible_facts": {"plan": plan, "batch_wanted": wanted}}


COLUMNS = 8
SIDE_IN = 1.0
STYLE = {"font.size": 8, "figure.titlesize": 10}
SMALLEST = 8
"""Shortest side of an array that is drawn as an image."""
WIDEST, MOST = 28, 6
"""Most characters of a value in the table, and most numbers of an array."""
Leaf = tuple[str, np.ndarray | None, np.ndarray]
"""Name, original values (None if the configuration adds them), and values that the model gets."""


def draw(task: Task) -> dict[str, Any]:
    """Have the trainer make the batch, then show it.

    Writes `pictures/<dataset>-<configuration>.png`, one file for each column of images.
    """
    plan, published, wanted = task.plan, from_plain(Published, task.arguments["published"]), task.arguments["wanted"]
    leaves, classes = _batch(plan, published, wanted)
    title, count = f"{plan.dataset['name']}, step {wanted['step']}", len(leaves[0][2])
    columns = "spec" in plan.dataset
    noun, labels = "rows" if columns else "images", _labels_of(leaves, classes, count)
    lines = [_head(leaves if columns else leaves[:1], f"{count} {noun} of step {wanted['step']}")]
    lines += [_table(leaves[: plan_text.SHOWN_COLUMNS])] if columns else []
    lines += [f"  and {len(leaves) - plan_text.SHOWN_COLUMNS:,} more columns"] if columns and len(leaves) > plan_text.SHOWN_COLUMNS else []
    stem = f"{plan.dataset['name']}-{Path(plan.config_name).stem}"
    for name, original, seen in leaves if columns else leaves[:1]:
        pixels = None if original is None else _as_pictures(original, seen)
        if pixels is not None:
            path = project.ROOT / "pictures" / f"{stem}{f'-{_safe(name)}' if columns else ''}.png"
            _draw(path, title, pixels[0], pixels[1], labels)
            lines.append(f"  picture  {project.relative(path)}")
    return {"changed": True, "show_last": "\n".join(lines)}


def _batch(plan: Plan, published: Published, wanted: dict[str, Any]) -> tuple[list[Leaf], list[str]]:
    with tempfile.TemporaryDirectory() as scratch:
        config, out = Path(scratch) / "config.yml", Path(scratch) / "batch.npz"
        config.write_text(plan.config_yaml, encoding="utf-8")
        data = ["--packs", published.folder, "--manifest", published.manifest]
        argv = ["batch", "--config", str(config), *data, "--out", str(out)]
        trainer_process.run_trainer([*argv, "--images", str(wanted["images"]), "--number", str(wanted["step"] - 1)], "making the batch")
        with np.load(out) as batch:
            names = [str(name) for name in batch["names"]]
            pairs = [(batch.get(f"original-{place}"), batch[f"seen-{place}"]) for place in range(len(names))]
            return [(name, *pair) for name, pair in zip(names, pairs, strict=True)], batch["classes"].tolist()


def _head(leaves: Sequence[Leaf], what: str) -> str:
    """The first line, with a remark if originals are shown beside the values that training sees."""
    changed = any(original is None or not _same(original, seen) for _, original, seen in leaves)
    return f"{what}, original and as training sees them" if changed else f"{what}; training sees them as they are"


def _labels_of(leaves: Sequence[Leaf], classes: Sequence[str], count: int) -> list[str]:
    """Label above each picture: its class, or the value of `y`; empty if `y` has several values."""
    single = [original for name, original, _ in leaves if name in ("label", "y") and original is not None and original.ndim == 1]
    values = single[0] if single else None
    if values is None:
        return [""] * count
    return [printable(classes[int(value)] if classes else value, 14) for value in values]


def _table(leaves: Sequence[Leaf]) -> str:
    """Table with a row per example: the original values of each column and, where they differ, those that the model gets."""
    header, columns = ["row"], []
    for name, original, seen in leaves:
        if original is not None:
            header.append(name)
            columns.append(original)
        if original is None or not _same(original, seen):
            header.append(f"{name} in training")
            columns.append(seen)
    rows = [[number + 1, *(_shown(column[number]) for column in columns)] for number in range(len(leaves[0][2]))]
    return text.table([printable(name, WIDEST) for name in header], rows)


def _same(original: np.ndarray, seen: np.ndarray) -> bool:
    """Return whether training leaves an array unchanged."""
    return np.array_equal(original, seen, equal_nan=original.dtype.kind == "f" and seen.dtype.kind == "f")


def _shown(value: Any) -> str:
    """Short text of a value, as `[1 2 3 ...] (24)`."""
    array = np.asarray(value)
    if array.ndim == 0:
        return printable(f"{array.item():.6g}" if array.dtype.kind == "f" else array.item(), WIDEST)
    first = " ".join(f"{one:.3g}" if array.dtype.kind == "f" else str(one) for one in array.ravel()[:MOST])
    more = " ..." if array.size > MOST else ""
    return f"[{printable(first, WIDEST)}{more}] ({'x'.join(map(str, array.shape))})"


def _as_pictures(*several: np.ndarray) -> list[np.ndarray] | None:
    """Convert arrays `[n, height, width]`, or with 1 or 3 channels, to uint8 pixels (0 to 255) on one scale; None if they are no images."""
    arrays = [values[..., None] if values.ndim == 3 else values for values in several]
    for array in arrays:
        if array.ndim != 4 or array.dtype.kind not in "fiu" or array.shape[3] not in (1, 3) or min(array.shape[1:3]) < SMALLEST:
            return None
    if all(array.dtype == np.uint8 for array in arrays):
        return arrays
    least, most = (float(bound) for bound in (min(map(np.nanmin, arrays)), max(map(np.nanmax, arrays))))
    return [np.nan_to_num((array - least) / max(most - least, 1e-12) * 255).clip(0, 255).astype(np.uint8) for array in arrays]


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)[:60]


def _draw(path: Path, title: str, original: np.ndarray, seen: np.ndarray, labels: Sequence[str]) -> None:
    """Write a PNG with rows of images `[n, height, width, channels]`; above each row of augmented images are the originals."""
    both = not np.array_equal(original, seen)
    columns, lines = min(COLUMNS, len(labels)), -(-len(labels) // COLUMNS)
    with mpl.rc_context(STYLE):
        height = lines * (2.1 if both else 1.25) * SIDE_IN + 0.6
        figure = Figure(figsize=(max(4.0, columns * SIDE_IN), height), layout="constrained")
        axes = figure.subplots(lines * (2 if both else 1), columns, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for number, label in enumerate(labels):
            line, column = divmod(number, COLUMNS)
            above = axes[line * 2 if both else line, column]
            _show(above, original[number] if both else seen[number])
            above.set_title(label, fontsize=7, pad=2)
            if both:
                _show(axes[line * 2 + 1, column], seen[number])
        figure.suptitle(title)
        with replacing(path) as part:
            figure.savefig(part, dpi=130, metadata={"Software": None})


def _show(axis: Any, image: np.ndarray) -> None:
    grey = image.shape[-1] == 1
    axis.imshow(image[..., 0] if grey else image, cmap="gray" if grey else None, vmin=0, vmax=255, interpolation="nearest")
