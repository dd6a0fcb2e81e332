"""A small dataset in class folders."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog and friends", "Käse")


def make_pictures(root: Path) -> Path:
    """Write images that a small network can learn: three classes, names with spaces and Unicode, 60 and 20 of each."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 60), ("test", 20)):
        for label, name in enumerate(CLASSES):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 90, (20 + number % 3 * 8, 24, 3), dtype=np.uint8)
                pixels[..., label] += 120
                ending = ("jpg", "png", "bmp", "gif")[number % 4]
                Image.fromarray(pixels).save(folder / f"bild {number}.{ending}")
    return root
