"""A picture of one batch: every image with its class, original and augmented."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from trainer.files import replacing

COLUMNS = 8
SIDE_IN = 1.0
STYLE = {"font.size": 8, "figure.titlesize": 10}


def draw(path: Path, title: str, original: np.ndarray, seen: np.ndarray, labels: np.ndarray, classes: list[str]) -> None:
    """Write a PNG with rows of images; if they are augmented, each row twice, the originals above.

    Args:
        path: of the picture.
        title: above it.
        original: `[n, height, width, channels]` uint8.
        seen: the same images as the model gets them.
        labels: `[n]`, indices into the classes.
        classes: their names.
    """
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
