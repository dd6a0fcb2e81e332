"""Generates a folder of JPEG pictures for timing loaders without a dataset: the size of face photographs, made from a seed."""

import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from trainer.common.files import FOLDER

CLASSES = 4
SIDES = (200, 300)
"""Shortest and longest side, pixels; the photographs of Labeled Faces in the Wild have 250."""
QUALITY = 85
SEED = 1


def make_pictures(folder: Path, count: int, progress: Callable[[int, int], None]) -> None:
    """Make `count` pictures in `train/<class>/` and one per class in `test/<class>/`: all of them, or no folder.

    Args:
        folder: where; nothing happens if it exists.
        count: at least one per class; picture n is the same for every count.
        progress: called with the number of finished pictures and of all.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    try:
        total = count + CLASSES
        for split in ("train", "test"):
            for label in range(CLASSES):
                (part / split / f"person-{label}").mkdir(parents=True)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for finished, _ in enumerate(pool.map(partial(_write, part, count), range(total)), 1):
                progress(finished, total)
        part.chmod(FOLDER)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(folder: Path, count: int, number: int) -> None:
    split, index = ("train", number) if number < count else ("test", number - count)
    # Numbered separately, so that a larger folder begins with the same pictures.
    rng = np.random.default_rng([SEED, int(split == "test"), index])
    _picture(rng).save(folder / split / f"person-{index % CLASSES}" / f"{index:06d}.jpg", quality=QUALITY)


def _picture(rng: np.random.Generator) -> Image.Image:
    """A blurred background, an oval with two dark spots, a fine texture: it compresses like a photograph (11 kB)."""
    width, height = (int(side) for side in rng.integers(SIDES[0], SIDES[1] + 1, 2))
    image = _noise(rng, 6, (width, height))
    draw = ImageDraw.Draw(image)
    left, top = width * rng.uniform(0.2, 0.3), height * rng.uniform(0.1, 0.2)
    draw.ellipse((left, top, width - left, height - top), fill=tuple(int(part) for part in rng.integers(90, 230, 3)))
    for eye in (0.4, 0.6):
        draw.ellipse((width * eye - 12, height * 0.4 - 7, width * eye + 12, height * 0.4 + 7), fill=(30, 25, 20))
    return Image.blend(image, _noise(rng, 40, (width, height)), 0.25)


def _noise(rng: np.random.Generator, cells: int, size: tuple[int, int]) -> Image.Image:
    """Random colours on a grid of `cells` cells per side, smoothly blended."""
    grid = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
    return Image.fromarray(grid).resize(size, Image.Resampling.BICUBIC)
