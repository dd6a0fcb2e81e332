"""One batch as a training sees it: the examples of a step as they are, and as the model gets them."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from trainer.common.files import replacing
from trainer.config.schedule import counts
from trainer.config.schema import Config
from trainer.data import manifest, transform
from trainer.data.batch import Batch, Call, Examples
from trainer.data.columns import Columns
from trainer.data.feeder import Feeder
from trainer.data.image_cache import open_images
from trainer.data.manifest import Manifest, Published
from trainer.data.partition import EpochPlan
from trainer.data.transform import Feeding
from trainer.step import image_augmentation


def write_batch(config: Config, published: Published, most: int, number: int, out: Path) -> None:
    """Write the first examples (at most `most`) of a step (`number`, from 0), as if one worker trained.

    `out` is an npz file: `names` of the leaves that the model gets, in order; for each its `seen-<n>` `[examples, ...]` and, unless it is
    a weight that the configuration adds, its `original-<n>`; `classes`. Images are uint8, texts str.
    """
    packed = manifest.load(published)
    examples, classes = _examples(packed, published, config), packed.classes
    sizes = counts(config, 1, packed.count("train"), packed.held_out)
    chosen, fed = packed.order[sizes.first_train :][: sizes.train_images], Feeding(config, classes, examples.spec)
    earlier, step = divmod(number, sizes.steps_per_epoch)
    size = sizes.train_images, sizes.global_batch, sizes.steps_per_epoch
    plan = EpochPlan(*size, config.seed, 1 + earlier, fed.lengths(examples, chosen), config.data.bucket)
    plain, batch = (_one(Feeder(examples, chosen, [1], 0, how), plan, step) for how in (None, fed))
    change = None
    if packed.table is None:
        change = image_augmentation.make_augmentation(config.augment, config.seed, len(classes), config.train.label_smoothing)
    spec = transform.weighed(config, examples.spec)
    arrays: dict[str, Any] = {"names": np.array(spec.names), "classes": np.array(classes, dtype=str)}
    for kind, leaves in (("original", examples.spec.unpack(plain.data)), ("seen", spec.unpack(change(batch) if change else batch.data))):
        arrays |= {f"{kind}-{place}": _plain(np.asarray(values)[:most], kind, packed) for place, values in enumerate(leaves)}
    with replacing(out) as part, part.open("wb") as stream:
        np.savez(stream, **arrays)


def _examples(packed: Manifest, published: Published, config: Config) -> Examples:
    """Examples of `train`; never cached: decoding a few images is faster than decoding all."""
    if packed.table is not None:
        return Columns(published.folder, packed.table.spec, "train", packed.table.train)
    return open_images(published, Path(os.devnull), config.data.image_size, 0, lambda *_: None, 1)[1]["train"]


def _one(feeder: Feeder, plan: EpochPlan, step: int) -> Batch:
    ((_, batch),) = feeder.epoch(plan, iter([Call(step, 1)]))
    return batch.at(0)


def _plain(values: np.ndarray, kind: str, packed: Manifest) -> np.ndarray:
    """Values for a file: texts instead of bytes, pixels of augmented images as bytes again."""
    if values.dtype == object:
        texts = [value.decode(errors="replace") for value in values.ravel()]
        return np.array(texts, dtype=str).reshape(values.shape)
    if packed.table is None and kind == "seen" and values.ndim == 4:
        return np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return values
