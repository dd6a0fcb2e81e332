"""One batch as a training sees it: the images of a step, original and augmented."""

import os
from pathlib import Path

import numpy as np

from trainer import augmentation, step
from trainer.config import Config
from trainer.data.cache import open_images
from trainer.data.manifest import Published
from trainer.data.partition import EpochPlan
from trainer.files import replacing
from trainer.schedule import counts


def write(config: Config, published: Published, images: int, number: int, out: Path) -> None:
    """Write the first images (at most `images`) of a step of the first epoch (`number`, from 0).

    `out` is an npz file: `original` and `seen` `[n, height, width, channels]` uint8, `labels` `[n]`, `classes`.
    """
    # Never cached: decoding a few images is faster than decoding all.
    manifest, splits = open_images(published, Path(os.devnull), config.data.image_size, 0, lambda *_: None, 1)
    sizes = counts(config, 1, len(manifest.train.files), manifest.held_out)
    order = np.asarray(manifest.validation_order)[sizes.validation_images : sizes.validation_images + sizes.train_images]
    plan = EpochPlan(sizes.train_images, sizes.global_batch, sizes.steps_per_epoch, config.seed, 1)
    chosen = order[plan.union(number % sizes.steps_per_epoch)]
    original, labels = splits["train"].gather(chosen), splits["train"].labels[chosen]
    seen, augment = original, augmentation.make(config.augment, config.seed)
    if augment is not None:
        whole = step.full((original[None], labels[None].astype(np.int32))).at(0)._replace(number=np.int32(number))
        seen = np.clip(np.rint(augment(whole)[0].numpy()), 0, 255).astype(np.uint8)
    with replacing(out) as part, part.open("wb") as stream:
        few = slice(images)
        np.savez(stream, original=original[few], seen=seen[few], labels=labels[few], classes=np.array(manifest.classes))
