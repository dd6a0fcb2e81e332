"""A folder of JPEG pictures to time loaders with, where a person has none: as large as photographs of faces, made from a seed."""

import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

CLASSES = 4
SIDES = (200, 300)
"""Shortest and longest side, pixels; the photographs of Labeled Faces in the Wild have 250."""
QUALITY = 85


def make(folder: Path, count: int, seed: int, told: Callable[[int, int], None]) -> None:
    """Make `count` pictures in `train/<class>/` and one a class in `test/<class>/`, all of them or no folder.

    Args:
        folder: where; nothing happens when it is there.
        count: at least one a class.
        seed: of what is on them; picture n is the same whatever `count` is.
        told: called with the pictures that are done, and all.
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
            for done, _ in enumerate(pool.map(partial(_write, part, count, seed), range(total)), 1):
                told(done, total)
        part.chmod(0o755)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(folder: Path, count: int, seed: int, number: int) -> None:
    split, index = ("train", number) if number < count else ("test", number - count)
    # Numbered apart, so that a longer folder begins with the same pictures.
    rng = np.random.default_rng([seed, int(split == "test"), index])
    picture(rng).save(folder / split / f"person-{index % CLASSES}" / f"{index:06d}.jpg", quality=QUALITY)


def picture(rng: np.random.Generator) -> Image.Image:
    """A blurred background, an oval with two dark spots, a fine texture: it compresses as a photograph does (11 kB)."""
    width, height = (int(side) for side in rng.integers(SIDES[0], SIDES[1] + 1, 2))
    image = _noise(rng, 6, (width, height))
    draw = ImageDraw.Draw(image)
    left, top = width * rng.uniform(0.2, 0.3), height * rng.uniform(0.1, 0.2)
    draw.ellipse((left, top, width - left, height - top), fill=tuple(int(part) for part in rng.integers(90, 230, 3)))
    for eye in (0.4, 0.6):
        draw.ellipse((width * eye - 12, height * 0.4 - 7, width * eye + 12, height * 0.4 + 7), fill=(30, 25, 20))
    return Image.blend(image, _noise(rng, 40, (width, height)), 0.25)


def _noise(rng: np.random.Generator, cells: int, size: tuple[int, int]) -> Image.Image:
    """Random colours on a grid of so many cells a side, with soft passages between them."""
    grid = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
    return Image.fromarray(grid).resize(size, Image.Resampling.BICUBIC)
