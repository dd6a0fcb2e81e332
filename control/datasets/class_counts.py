"""How many training examples of a dataset each class has: what `train.class_weight: balanced` weighs by."""

import numpy as np

from control.datasets import publish
from control.datasets.sources import Listing
from trainer.data import classes, manifest
from trainer.data.columns import Columns
from trainer.data.manifest import Manifest, Records
from trainer.data.partition import held_out_order
from trainer.schedule import Counts

CHUNK = 2**20
"""Examples that are counted at a time."""


def of_listing(listing: Listing, sizes: Counts) -> list[int]:
    """Counts `[classes]` of a source all of whose examples can be read.

    Raises:
        ConfigError: columns without classes.
    """
    if listing.table is None:
        records, names = Records(listing.files["train"], listing.labels["train"], []), listing.files["train"][: listing.held_out or 0]
        return _counts(np.asarray(records.labels), publish.validation_order(records, set(names))[0], sizes, len(listing.classes))
    assert listing.folder is not None
    table = listing.table
    number = classes.label_of(table.spec)
    labels = Columns(listing.folder, table.spec, "train", table.train).fixed(number)
    # In the file's order, not in that of the training.
    chosen = np.sort(_chosen(held_out_order(table.train, listing.held_out or 0, manifest.SPLIT_SEED), sizes))
    counts = np.zeros(len(listing.classes), np.int64)
    for start in range(0, len(chosen), CHUNK):
        more = classes.counted(np.asarray(labels[chosen[start : start + CHUNK]]), table.spec.leaves[number])
        counts, more = (np.pad(one, (0, max(len(counts), len(more)) - len(one))) for one in (counts, more))
        counts = counts + more
    return [int(count) for count in counts]


def of_images(packed: Manifest, sizes: Counts) -> list[int]:
    """Counts `[classes]` of published images, of which some of the source may be left out."""
    return _counts(np.asarray(packed.train.labels), packed.order, sizes, len(packed.classes))


def _counts(labels: np.ndarray, order: np.ndarray, sizes: Counts, number: int) -> list[int]:
    return [int(count) for count in np.bincount(labels[_chosen(order, sizes)], minlength=number)]


def _chosen(order: np.ndarray, sizes: Counts) -> np.ndarray:
    """Those that train, as in `trainer.loop`."""
    return order[sizes.validation_images : sizes.validation_images + sizes.train_images]
