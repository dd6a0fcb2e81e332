"""How many images per second the input pipeline alone delivers to one worker.

    .venv/bin/python benchmarks/pipeline.py PUBLISHED_DATASET [--epochs 3] [--cache-limit-mb 2048]

PUBLISHED_DATASET is a folder such as `.lockstep/dfs/datasets/<digest>`. Batches are cut, gathered
and handed over exactly as in training (batch 64, 8 steps per call, one worker of two); nothing trains.
"""

import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks import script
from trainer.data.cache import open_images
from trainer.data.manifest import FILE, Published
from trainer.data.partition import EpochPlan
from trainer.data.pipeline import Feeder, calls
from trainer.files import sha256_file


def main() -> None:
    """Measure and print."""
    parser = script.parser(__doc__, epochs=3)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--caches", type=Path, default=Path(".lockstep/caches"))
    parser.add_argument("--cache-limit-mb", type=int, default=2048)
    arguments = parser.parse_args()
    published = Published(arguments.dataset, sha256_file(arguments.dataset / FILE))
    manifest, images = open_images(published, arguments.caches, (32, 32, 3), arguments.cache_limit_mb, lambda *_: None)
    count = len(manifest.train.files)
    feeder = Feeder(images["train"], np.arange(count), [1, 1], 0)
    rates = [one_epoch(feeder, count, epoch) for epoch in range(arguments.epochs + 1)][1:]
    kind = type(images["train"]).__name__.lower()
    print(f"{kind} images: median {statistics.median(rates):,.0f} images/s ({min(rates):,.0f} to {max(rates):,.0f}, {len(rates)} epochs)")


def one_epoch(feeder: Feeder, count: int, epoch: int) -> float:
    """Images per second in one epoch of one worker."""
    steps, seen, begun = count // 128, 0, time.perf_counter()
    for _, batch in feeder.epoch(EpochPlan(count, 128, steps, 1, epoch), calls(0, steps, 8, False)):
        seen += batch.labels.size
    return seen / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
