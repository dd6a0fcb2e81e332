"""How many training examples of a dataset each class has: what `train.class_weight: balanced` weighs by."""

from collections.abc import Sequence

import numpy as np

from control.datasets.listing import stratified
from control.datasets.listing.registry import Listing
from control.datasets.publishing import publish
from trainer.common.errors import ConfigError
from trainer.config.schedule import Counts
from trainer.config.schema import Train
from trainer.data import class_weight
from trainer.data.class_weight import HOW, KEY, MOST, numbers, weights
from trainer.data.columns import Columns
from trainer.data.manifest import Manifest, Records
from trainer.data.partition import held_out_order
from trainer.data.spec import Leaf

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
    number = class_weight.label_of(table.spec)
    labels = Columns(listing.folder, table.spec, "train", table.train).fixed(number)
    # In the file's order, not in that of the training.
    chosen = np.sort(_chosen(held_out_order(table.train, listing.held_out or 0, stratified.SPLIT_SEED), sizes))
    counts = np.zeros(len(listing.classes), np.int64)
    for start in range(0, len(chosen), CHUNK):
        more = _counted(np.asarray(labels[chosen[start : start + CHUNK]]), table.spec.leaves[number])
        counts, more = (np.pad(one, (0, max(len(counts), len(more)) - len(one))) for one in (counts, more))
        counts = counts + more
    return [int(count) for count in counts]


def of_images(packed: Manifest, sizes: Counts) -> list[int]:
    """Counts `[classes]` of published images, of which some of the source may be left out."""
    return _counts(np.asarray(packed.train.labels), packed.order, sizes, len(packed.classes))


def _counts(labels: np.ndarray, order: np.ndarray, sizes: Counts, number: int) -> list[int]:
    return [int(count) for count in np.bincount(labels[_chosen(order, sizes)], minlength=number)]


def _chosen(order: np.ndarray, sizes: Counts) -> np.ndarray:
    """The part of `order` that trains, as in `trainer.worker.loop`."""
    return order[sizes.first_train :][: sizes.train_images]


def _counted(y: np.ndarray, leaf: Leaf) -> np.ndarray:
    """How many examples of `y` each class has, `[classes]`; ConfigError if it holds no numbers of classes."""
    classes = numbers(y)
    whole = leaf.shape not in ((), (1,)) or bool((y.reshape(len(y)) == classes).all())
    if not whole or classes.min(initial=0) < 0 or classes.max(initial=0) >= MOST:
        raise ConfigError(f"{KEY}: {leaf} has other values than whole numbers from 0 to {MOST - 1:,}; {HOW}")
    return np.bincount(classes)


def weights_text(train: Train, names: Sequence[str], most: int = 6) -> str:
    """Weights for the plan: `cat 0.5, dog 2`."""
    table = weights(train, names)
    labels = names or list(map(str, range(len(table))))
    listed = [f"{label} {weight:.3g}" for label, weight in zip(labels, table.tolist(), strict=False)]
    more = f", {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
