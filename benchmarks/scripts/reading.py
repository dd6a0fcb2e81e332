"""Cost of reading images: loaders as threads or processes, data and code compared with their digests, the cache.

    PYTHONPATH=. .venv/bin/python benchmarks/scripts/reading.py loaders [--images 512] [--rounds 7]
    PYTHONPATH=. .venv/bin/python benchmarks/scripts/reading.py digests [--images 1500] [--rounds 8]
    PYTHONPATH=. .venv/bin/python benchmarks/scripts/reading.py cache DATASET [--rounds 3]

`loaders`: training uses threads (`trainer.data.image_cache.DecodingImages`); processes read and decode the same images
and send back arrays.
`digests`: images, a manifest and the trainer, read with and without the check; CPU time, which other programs do not affect.
`cache`: batches of a published dataset, such as `.lockstep/dfs/datasets/<digest>`, cut, gathered and handed over as in training
(batch 64, 8 steps per call, one worker of two), from the packed cache and decoded meanwhile; nothing trains.
Pictures are generated and published in a temporary folder. All take turns in each round; the first round is discarded.
"""

import argparse
import functools
import hashlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.shared import pictures, script
from control.common import text
from control.remote import checked_code, trainer_package
from trainer.common.files import sha256_file
from trainer.data import image_cache, manifest
from trainer.data.feeder import Feeder, calls
from trainer.data.images import fit
from trainer.data.manifest import Published
from trainer.data.partition import EpochPlan

TINY, SMALL, LARGE = 32, (32, 32, 3), (224, 224, 3)
LOADERS = (1, 2, 3, 4)
CACHE_MB, BATCH = 2048, 64
Row = list[object]
_readers: list[image_cache.PackReader] = []


def main() -> None:
    """Measure and print."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = line.add_subparsers(dest="command", required=True)
    for name, images, rounds in (("loaders", 512, 7), ("digests", 1500, 8), ("cache", 0, 3)):
        command = commands.add_parser(name)
        command.add_argument("--rounds", type=int, default=rounds)
        if images:
            command.add_argument("--images", type=int, default=images)
        else:
            command.add_argument("dataset", type=Path)
    given = line.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        print({"loaders": loaders, "digests": digests, "cache": cached}[given.command](given, Path(temporary)))


def medians(ways: Sequence[Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """The median seconds of each way."""
    return [statistics.median(seconds) for seconds in script.in_turn(dict(enumerate(ways)), rounds, clock).values()]


def loaders(given: argparse.Namespace, folder: Path) -> str:
    """Images/s that threads and processes decode, by number of loaders."""
    photographs = pictures.published(folder / "pictures", given.images)
    tiny = pictures.published(folder / "tiny", given.images, TINY)
    cases = {"pictures to 32x32": (photographs, SMALL), "pictures to 224x224": (photographs, LARGE), "tiny to 32x32": (tiny, SMALL)}
    indices, rows = np.random.default_rng(pictures.SEED).permutation(given.images), []
    for case, (packs, size) in cases.items():
        ways = [functools.partial(way(packs, size, number), indices) for number in LOADERS for way in (threads, processes)]
        rates = [text.Number(given.images / seconds, 0) for seconds in medians(ways, given.rounds)]
        rows += [[case, number, *rates[2 * index : 2 * index + 2]] for index, number in enumerate(LOADERS)]
    return text.table(["case", "loaders", "threads, images/s", "processes, images/s"], rows)


def threads(packs: Published, size: tuple[int, ...], number: int) -> Callable[[np.ndarray], np.ndarray]:
    """Decoding as in training."""
    return image_cache.DecodingImages(packs.folder, manifest.load(packs), "train", size, number).pixels


def processes(packs: Published, size: tuple[int, ...], number: int) -> Callable[[np.ndarray], np.ndarray]:
    """Decoding in separate processes, which send arrays back."""
    pool = ProcessPoolExecutor(number, initializer=_open, initargs=(packs,))

    def gather(indices: np.ndarray) -> np.ndarray:
        parts = np.array_split(indices, min(len(indices), image_cache.TASKS * number))
        return np.concatenate(list(pool.map(_decode, parts, [size] * len(parts))))

    return gather


def _open(packs: Published) -> None:
    _readers.append(image_cache.PackReader(packs.folder, manifest.load(packs), "train"))


def _decode(indices: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    return np.stack([fit(_readers[0].image(int(index)), size) for index in indices])


class Unchecked(image_cache.PackReader):
    """The reader without the check."""

    def _record(self, index: int) -> bytes:
        first, last = self._records.offsets[index], self._records.offsets[index + 1]
        shard, start = self._manifest.locate(first)
        return os.pread(self._files[shard], last - first, start)


def digests(given: argparse.Namespace, folder: Path) -> str:
    """Images read and programs started per second of CPU time, without and with the check."""
    published = pictures.published(folder / "pictures", given.images)
    data = (published.folder / manifest.FILE).read_bytes()
    seconds = medians([lambda: None, lambda: hashlib.sha256(data).hexdigest()], given.rounds, time.process_time)
    rows = [_decoding(published, size, given.rounds) for size in (SMALL, LARGE)]
    rows.append([f"digest of a manifest of {len(data) / 1e6:.1f} MB", *(text.Number(value * 1000, 2) for value in seconds), "ms"])
    return text.table(["what", "without", "with", "unit"], [*rows, started(folder, given.rounds)])


def _decoding(published: Published, size: tuple[int, ...], rounds: int) -> Row:
    """Images read and decoded by one loader."""
    contents = manifest.load(published)
    images, indices = image_cache.DecodingImages(published.folder, contents, "train", size, 1), np.arange(len(contents.train.files))

    def read(reader: image_cache.PackReader) -> None:
        images._reader = reader
        images.pixels(indices)

    readers = [kind(published.folder, contents, "train") for kind in (Unchecked, image_cache.PackReader)]
    seconds = medians([functools.partial(read, reader) for reader in readers], rounds, time.process_time)
    return [f"decode to {size[0]}x{size[1]}", *(text.Number(len(indices) / value, 0) for value in seconds), "images/s"]


def started(folder: Path, rounds: int) -> Row:
    """Time to start a Python that imports only what its start needs."""
    archive = trainer_package.TRAINER.build(folder / "code")
    checked = checked_code.command(sys.executable, str(archive), trainer_package.TRAINER.sha256(), str(folder / "caches"))
    plain = {**os.environ, "PYTHONPATH": str(archive)}
    commands = (([sys.executable], plain), (checked, dict(os.environ)))
    ways = [functools.partial(subprocess.run, [*argv, "-c", "pass"], env=environment, check=True) for argv, environment in commands]
    return ["start of the trainer", *(text.Number(value * 1000, 0) for value in medians(ways, 2 * rounds, children)), "ms"]


def children() -> float:
    """CPU seconds of all child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cached(given: argparse.Namespace, folder: Path) -> str:
    """Images/s that one worker gets from the cache, and decoded meanwhile."""
    published = Published(given.dataset, sha256_file(given.dataset / manifest.FILE))
    opened = [image_cache.open_images(published, folder, SMALL, limit, lambda *_: None) for limit in (CACHE_MB, 0)]
    steps = len(opened[0][0].train.files) // (2 * BATCH)
    feeders = [Feeder(images["train"], np.arange(len(images["train"])), [1, 1], 0) for _, images in opened]

    def epoch(feeder: Feeder) -> None:
        for _ in feeder.epoch(EpochPlan(2 * BATCH * steps, 2 * BATCH, steps, 1, 1), calls(0, steps, 8, False)):
            pass

    seconds = medians([functools.partial(epoch, feeder) for feeder in feeders], given.rounds)
    kinds = [type(images["train"]).__name__.lower() for _, images in opened]
    return text.table(
        ["images", "images/s"], [[kind, text.Number(steps * BATCH / value, 0)] for kind, value in zip(kinds, seconds, strict=True)]
    )


if __name__ == "__main__":
    main()
