"""Random images as a data set, for `train.yml` beside programs that take theirs from memory."""

from collections.abc import Iterator

import numpy as np

COUNTS = {"train": 16_384, "test": 256}


def images(split: str) -> Iterator[tuple[np.ndarray, int]]:
    """Pairs of an image `[32, 32, 3]` uint8 and its class, 0 to 9."""
    random = np.random.default_rng(len(split))
    for number in range(COUNTS[split]):
        yield random.integers(0, 256, (32, 32, 3), dtype=np.uint8), number % 10
