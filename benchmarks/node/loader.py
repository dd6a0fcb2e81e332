"""How long passes over published images take, by number of loaders: batches are made and augmented, nothing trains.

Modelled on the `timing` of a course on distributed data loading (SkafteNicki/dtu_mlops): five passes for each number of
loader workers. Here the numbers take turns, so that all see the same machine.
"""

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.node.passes import Progress, Spent, in_turn
from trainer.common.errors import DatasetError
from trainer.common.files import write_json
from trainer.config import loading
from trainer.config.schema import Augment, Config
from trainer.data.batch import Batch, Call
from trainer.data.feeder import Feeder, calls
from trainer.data.image_cache import open_images
from trainer.data.manifest import Published
from trainer.data.partition import EpochPlan, epoch_order
from trainer.rundir.metrics_log import Metrics
from trainer.rundir.phases import Phase

WARM_UP = 0
REPORT_EVERY_S = 1.0


@dataclass(frozen=True)
class Wanted:
    """Measurements to make."""

    loaders: tuple[int, ...]
    passes: int
    limit: int | None = None
    """Images per pass; None: all."""


def run(config: Path, published: Published, wanted: Wanted, out: Path) -> None:
    """Measure and write `out/results.json`; `out/metrics.jsonl` shows progress."""
    metrics = Metrics(out / "metrics.jsonl")
    results = measure(loading.build(loading.load(config)), published, wanted, lambda note: metrics.phase(Phase.TIMING, note))
    write_json(out / "results.json", results)


def measure(config: Config, published: Published, wanted: Wanted, progress: Progress) -> dict[str, Any]:
    """Time passes over the training images of a published dataset, decoded and augmented as in training.

    Args:
        config: its image size, batch, steps per call, seed and section `augment` are used.
        published: the dataset.
        wanted: numbers of loaders, passes of each.
        progress: called with a progress line.

    Returns:
        `images` per pass, their `bytes` as files, `decoded_mb` of all images of the dataset at that size, `cores` that
        this process may use, and `rows`: `loaders`, `number` (of the pass), `images`, and the values of `Spent`.

    Raises:
        DatasetError: its images are raw pixels.
    """
    size = config.data.image_size
    opened = {loaders: open_images(published, Path(os.devnull), size, 0, lambda *_: None, loaders) for loaders in wanted.loaders}
    manifest = opened[wanted.loaders[0]][0]
    if manifest.shape is not None:
        raise DatasetError(f"{published.folder}: its images are raw pixels, so loaders have nothing to decode")
    chosen = epoch_order(len(manifest.train.files), config.seed, WARM_UP)[: wanted.limit]
    feeders = {loaders: Feeder(images["train"], chosen, [1], 0) for loaders, (_, images) in opened.items()}
    batch_size = config.train.batch_size
    steps = math.ceil(len(chosen) / batch_size)
    planned = list(calls(0, steps, config.train.steps_per_call, uneven=len(chosen) % batch_size > 0))
    report, vary = _seldom(progress), _augmentation(config)
    begun, of = itertools.count(1), 1 + wanted.passes * len(feeders)

    def timed(loaders: int, number: int) -> dict[str, float]:
        name = f"pass {next(begun)} of {of} ({'warm-up, ' if number == WARM_UP else ''}loaders: {loaders})"
        finished, spent = 0, Spent()
        for call, batch in feeders[loaders].epoch(EpochPlan(len(chosen), batch_size, steps, config.seed, number), iter(planned)):
            vary(call, batch)
            finished += batch.weights.size
            report(f"{name}: {finished:,} of {len(chosen):,} images")
        return {"loaders": loaders, "number": number, "images": len(chosen), **spent.so_far()}

    # The first pass fills the kernel's page cache and is not counted.
    timed(max(feeders), WARM_UP)
    rows = [timed(loaders, number) for number in range(1, wanted.passes + 1) for loaders in in_turn(wanted.loaders, number)]
    offsets = manifest.train.offsets
    return {
        "images": len(chosen),
        "bytes": sum(offsets[index + 1] - offsets[index] for index in chosen),
        "decoded_mb": (len(manifest.train.files) + len(manifest.test.files)) * math.prod(size) / 2**20,
        "cores": len(os.sched_getaffinity(0)),
        "rows": rows,
    }


def _augmentation(config: Config) -> Callable[[Call, Batch], None]:
    """A function that augments batches as in training."""
    # Mixup takes images in pairs, which nobody reads here.
    alone = dataclasses.replace(config.augment, mixup=0.0)
    if alone == Augment():
        return lambda *_: None
    from trainer.step import image_augmentation

    augment: Callable[[Batch], Any] = cast(Any, image_augmentation.make_augmentation(alone, config.seed))

    def vary(call: Call, batch: Batch) -> None:
        for index in range(call.steps):
            augment(batch.at(index))

    return vary


def _seldom(progress: Progress) -> Progress:
    """`progress`, once per `REPORT_EVERY_S`: writing a line takes time from the pass."""
    last = -math.inf

    def report(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_EVERY_S:
            last = time.monotonic()
            progress(line)

    return report
