"""Draw one batch of a published dataset on the control node: every image with its class, original and augmented."""

import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from control import project
from control.remote import trainer_process
from control.task import Task
from trainer.files import replacing

COLUMNS = 8
SIDE_IN = 1.0
STYLE = {"font.size": 8, "figure.titlesize": 10}


class DrawBatch(Task):
    """Writes `pictures/<dataset>-<configuration>.png`."""

    def act(self) -> dict[str, Any]:
        """Have the trainer make the batch, then draw it."""
        plan, published, wanted = (self.arguments[key] for key in ("plan", "published", "wanted"))
        name = f"{plan['dataset']['name']}-{Path(plan['config_name']).stem}"
        path = project.ROOT / "pictures" / f"{name}.png"
        with tempfile.TemporaryDirectory() as scratch:
            config, out = Path(scratch) / "config.yml", Path(scratch) / "batch.npz"
            config.write_text(plan["config_yaml"], encoding="utf-8")
            data = ["--packs", published["folder"], "--manifest", published["manifest"]]
            argv = ["batch", "--config", str(config), *data, "--out", str(out)]
            trainer_process.run([*argv, "--images", str(wanted["images"]), "--number", str(wanted["step"] - 1)], "making the batch")
            with np.load(out) as batch:
                title = f"{plan['dataset']['name']}, step {wanted['step']}"
                _draw(path, title, batch["original"], batch["seen"], batch["labels"], batch["classes"].tolist())
                count = len(batch["labels"])
        shown = f"{count} images of step {wanted['step']}, original and as training sees them\n  picture  {project.relative(path)}"
        return {"changed": True, "show_last": shown}


def _draw(path: Path, title: str, original: np.ndarray, seen: np.ndarray, labels: np.ndarray, classes: list[str]) -> None:
    """Write a PNG with rows of images `[n, height, width, channels]`; if they are augmented, each row twice, the originals above."""
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
            above.set_title(classes[label][:14], fontsize=7, pad=2)
            if both:
                _show(axes[line * 2 + 1, column], seen[number])
        figure.suptitle(title)
        with replacing(path) as part:
            figure.savefig(part, dpi=130, metadata={"Software": None})


def _show(axis: Any, image: np.ndarray) -> None:
    grey = image.shape[-1] == 1
    axis.imshow(image[..., 0] if grey else image, cmap="gray" if grey else None, vmin=0, vmax=255, interpolation="nearest")
