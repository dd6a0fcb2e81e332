"""Default configuration, chosen by the dataset, if the command names none.

Grey images of about MNIST's size get the lecture's configuration. Other images are resized to their usual size, limited to what a CPU
trains in minutes, and an epoch covers every image once.
"""

import math
import statistics
from dataclasses import dataclass
from typing import Any

from control.datasets.listing.image_headers import shape_of
from control.datasets.listing.registry import Listing, Source

LECTURE = "lecture_cnn"
GREY = 32
"""Longest side, in pixels, of grey images that get the lecture's configuration."""
LECTURE_IMAGES = 20_000
"""Fewest images for the lecture's epoch of 70 steps: with fewer, an epoch could be several passes over them."""
SMALL, LARGE = "task_cnn", "deep_cnn"
SMALL_SIDE = 48
"""Longest side, in pixels, of images that are resized to 32x32 as in CIFAR-10: the dense layer of `task_cnn` grows with the image."""
LONGEST = 96
STEP = 8
"""Sides are multiples of this: three stages halve them."""
LEAST = 32
SAMPLED = 64
PIXELS = 1.25e9
"""Approximate pixels of a training: 1.2 million images of 32x32, minutes on two cores."""
FEWEST_EPOCHS, MOST_EPOCHS = 5, 30
FEW_IMAGES, FEW_BATCH = 2_000, 16
"""Number of images below which a dataset is small, and its batch per worker: a larger batch would make an epoch one or two steps."""


@dataclass(frozen=True)
class Choice:
    """A configuration, its changes for the dataset, and the reason for the choice."""

    config: str
    overrides: dict[str, Any]
    why: str


def choose(source: Source, listing: Listing) -> Choice:
    """The configuration for a dataset.

    Args:
        source: the dataset; a few images are read, unless all are raw pixels of one known shape.
        listing: the dataset's contents.
    """
    images = len(listing.files["train"])
    height, width, channels = _usual_shape(source, listing)
    kind = f"{'grey' if channels == 1 else 'colour'} images of about {width}x{height}"
    if channels == 1 and max(height, width) <= GREY:
        whole = {"train.steps_per_epoch": None} if images < LECTURE_IMAGES else {}
        return Choice(LECTURE, whole, _why(LECTURE, kind))
    small = max(height, width) <= SMALL_SIDE
    size = [LEAST, LEAST] if small else _fitting(height, width)
    epochs = max(FEWEST_EPOCHS, min(MOST_EPOCHS, round(PIXELS / max(1, images * size[0] * size[1]))))
    overrides: dict[str, Any] = {"data.image_size": [*size, channels], "train.epochs": epochs}
    if images < FEW_IMAGES:
        overrides["train.batch_size"] = FEW_BATCH
    config = SMALL if small else LARGE
    return Choice(config, overrides, _why(config, f"{kind}, scaled to {size[1]}x{size[0]}"))


def _fitting(height: int, width: int) -> list[int]:
    """Height and width of about the same proportions, in multiples of `STEP` from `LEAST` to `LONGEST`."""
    factor = min(1.0, LONGEST / max(height, width))
    return [min(LONGEST, max(LEAST, round(side * factor / STEP) * STEP)) for side in (height, width)]


def _usual_shape(source: Source, listing: Listing) -> tuple[int, int, int]:
    """Median height and width of some images; 3 channels if any of them has colours."""
    if listing.shape is not None:
        height, width, channels = listing.shape
        return height, width, channels
    count = len(listing.files["train"])
    places = range(0, count, max(1, math.ceil(count / SAMPLED)))
    shapes = [shape for place in places if (shape := _shape(source, place))]
    if not shapes:
        # No image can be read; publishing names them.
        return LEAST, LEAST, 3
    height, width = (statistics.median_low(shape[side] for shape in shapes) for side in (0, 1))
    return height, width, max(shape[2] for shape in shapes)


def _shape(source: Source, place: int) -> tuple[int, int, int] | None:
    try:
        return shape_of(source.read("train", place))
    except (OSError, ValueError):
        return None


def _why(config: str, kind: str) -> str:
    return f"{config}: {kind}; choose another with -e config=NAME"
