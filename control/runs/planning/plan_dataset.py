"""The dataset of a plan: opened, counted, described."""

from pathlib import Path
from typing import Any

from control.datasets.listing.registry import Listing, Source, open_source
from control.datasets.publishing import class_counts
from control.datasets.publishing.publish import PublishedData
from control.datasets.sources import fashion_mnist, idx
from control.runs.planning.resolve import with_keys
from trainer.config import schedule
from trainer.config import schema as configs
from trainer.config.schema import Config
from trainer.data import manifest


def with_class_counts(config: Config, listing: Listing, published: PublishedData, sizes: schedule.Counts, packs: Path) -> Config:
    """Count the classes of the training examples, if `train.class_weight` depends on them."""
    if config.train.class_weight != configs.BALANCED:
        return with_keys(config, {"train.class_counts": None})
    if published.excluded and published.manifest:
        counts = class_counts.of_images(manifest.load(published.place(packs)), sizes)
    else:
        counts = class_counts.of_listing(listing, sizes)
    return with_keys(config, {"train.class_counts": counts})


def class_weights(config: Config, names: list[str]) -> str | None:
    """Weights of the classes, for the plan.

    Raises:
        ConfigError: an unknown class.
    """
    return class_counts.weights_text(config.train, names) if config.train.class_weight is not None else None


def open_dataset(data: configs.Data, may_fetch: bool) -> tuple[Source, Listing]:
    """The dataset, its names and labels; with `--check` the example data is not fetched, only described."""
    if data.source == "fashion_mnist" and data.path is None and not may_fetch and not fashion_mnist.is_here():
        return idx.Idx("."), fashion_mnist.expected()
    source = open_source(data.source, data.path, data.target, data.features, data.test_split)
    return source, source.scan()


def describe(listing: Listing, published: PublishedData) -> dict[str, Any]:
    """The dataset's entries for the plan and the results."""
    return {
        "name": listing.name,
        "classes": listing.classes,
        "train": published.train,
        "test": published.test,
        "ignored": len(listing.ignored),
        "left_out": len(published.excluded),
        "digest": published.digest,
        "manifest": published.manifest,
        "note": listing.note,
        **({"spec": listing.table.spec.to_json()} if listing.table is not None else {}),
    }
