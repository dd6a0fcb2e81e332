"""Try the function `augment` of a dataset's file on its first examples, before any host is touched."""

from collections.abc import Sequence

import numpy as np

from control.datasets.listing.registry import Listing, Source
from trainer.common.errors import ConfigError
from trainer.config.schema import Data
from trainer.data.batch import Examples
from trainer.data.columns import Columns
from trainer.data.images import decode, fit
from trainer.data.partition import EpochPlan
from trainer.data.spec import of_images
from trainer.data.user_augment import UserAugment
from trainer.user_code import user_function
from trainer.user_code.user_function import Function

TRIED = 4
"""Examples."""


def check_augment(data: Data, source: Source, listing: Listing) -> None:
    """Refuse (ConfigError) a function that fails, changes what an example is, or draws from elsewhere than its seed."""
    given = data.augment
    if given is None:
        return
    examples = _first_examples(data, source, listing)
    function = Function.of(given)
    # What it prints must not get between what this process prints.
    with user_function.explaining_errors("dataset", function):
        rows, indices = UserAugment(given, examples.spec, 1), np.arange(min(TRIED, len(examples)))
        sides = examples.longest(indices).tolist() if isinstance(examples, Columns) else []
        seeds = EpochPlan(len(examples), len(indices), 1, 1, 1).seeds(0, indices)
        first, again = (examples.spec.unpack(rows.gather(examples, indices, seeds, sides)) for _ in range(2))
    for leaf, one, other in zip(examples.spec.leaves, first, again, strict=True):
        if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            raise ConfigError(
                f"dataset={function.called}: given the same seed twice, it returns two different {leaf.name}, so a run could not be "
                "continued. Fix: draw from the seed only, as in np.random.default_rng(seed)"
            )


def _first_examples(data: Data, source: Source, listing: Listing) -> Examples:
    """The first examples of `train`, before they are published."""
    if listing.table is None:
        return _Images(source, listing, data.image_size)
    assert listing.folder is not None
    return Columns(listing.folder, listing.table.spec, "train", listing.table.train)


class _Images:
    """Images that a source reads."""

    def __init__(self, source: Source, listing: Listing, size: Sequence[int]):
        self.spec, self._source, self._labels = of_images(size), source, np.asarray(listing.labels["train"], np.int32)
        self._size = tuple(size)

    def __len__(self) -> int:
        return len(self._labels)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One that can't be read is black; publishing names it."""
        return np.stack([self._image(int(index)) for index in indices]), self._labels[indices]

    def _image(self, index: int) -> np.ndarray:
        try:
            return fit(decode(self._source.read("train", index)), self._size)
        except (OSError, ValueError):
            return np.zeros(self._size, np.uint8)
