"""The examples of a published dataset, ready for training on one node: images or columns."""

from pathlib import Path

from trainer.config.schema import Data
from trainer.data import manifest as manifests
from trainer.data.batch import Examples
from trainer.data.columns import open_columns
from trainer.data.image_cache import open_images
from trainer.data.local_copy import Progress
from trainer.data.manifest import Manifest, Published


def open_examples(published: Published, caches: Path, data: Data, progress: Progress) -> tuple[Manifest, dict[str, Examples]]:
    """The manifest of a published dataset, and the examples of `train` and `test`, with a copy on this node's own disk where it fits.

    DatasetError: the dataset is not there, or not what was published.
    """
    if manifests.load(published).table is not None:
        manifest, columns = open_columns(published, caches, progress)
        return manifest, dict(columns)
    manifest, images = open_images(published, caches, data.image_size, data.cache_limit_mb, progress, data.loaders)
    return manifest, dict(images)
