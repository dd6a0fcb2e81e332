"""Images ready for training on one node: a packed cache of uint8 pixels, made once per digest and size.

A dataset larger than the cache limit is not cached: its records are decoded while it trains.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from trainer.data import manifest as manifests
from trainer.data.images import decode, fit, fit_batch
from trainer.data.manifest import Manifest
from trainer.files import sync

CHUNK = 512
TASKS = 4
"""Tasks that each loader gets of one call's images: more than one, because images differ in size."""
SPLITS = ("train", "test")
Progress = Callable[[int, int], None]


class Images(Protocol):
    """Random access to the images of one split."""

    labels: np.ndarray

    def gather(self, indices: np.ndarray) -> np.ndarray:
        """Images `[len(indices), height, width, channels]` uint8."""


class Cached:
    """Images in a memory-mapped file."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray):
        self._pixels, self.labels = pixels, labels

    def gather(self, indices: np.ndarray) -> np.ndarray:
        """Copy images out of the file (or the kernel's page cache)."""
        return self._pixels[indices]


class Decoded:
    """Images decoded from the published packs each time they are asked for, by a few threads.

    Threads and not processes: Pillow lets go of Python's lock while it decodes and resizes, what they decode needs no way from
    one process to another, and none is left behind when a worker is killed. docs/benchmarks.md has both, measured.
    """

    def __init__(self, packs: Path, manifest: Manifest, split: str, size: tuple[int, ...], loaders: int | None = None):
        """Decode with so many threads; default: as many as this process may use cores."""
        self._reader = PackReader(packs, manifest, split)
        self._size = size
        self._loaders = loaders or len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(self._loaders, thread_name_prefix="loader")
        self.labels = np.asarray(manifest.records(split).labels, np.int32)

    def gather(self, indices: np.ndarray) -> np.ndarray:
        """Read, decode and fit each image."""
        images = np.empty((len(indices), *self._size), np.uint8)

        def load(places: np.ndarray) -> None:
            for place in places:
                images[place] = fit(self._reader.image(int(indices[place])), self._size)

        # Several images a task: the executor's own work on a task is as much as decoding a tiny one.
        tasks = np.array_split(np.arange(len(indices)), min(len(indices), TASKS * self._loaders) or 1)
        for _ in self._threads.map(load, tasks):
            pass
        return images


class PackReader:
    """Records of one split in the published pack files."""

    def __init__(self, packs: Path, manifest: Manifest, split: str):
        self._manifest, self._records = manifest, manifest.records(split)
        names = [packs / manifests.shard_name(number) for number in range(len(manifest.shards))]
        self._shards = [np.memmap(name, np.uint8, "r") for name in names]

    def image(self, index: int) -> np.ndarray:
        """One image `[height, width, channels]` uint8, decoded but not fitted."""
        first, last = self._records.offsets[index], self._records.offsets[index + 1]
        shard, start = self._manifest.locate(first)
        data = self._shards[shard][start : start + last - first]
        if self._manifest.shape is not None:
            return data.reshape(self._manifest.shape)
        return decode(data.tobytes())


def open_images(
    packs: Path, caches: Path, size: tuple[int, ...], limit_mb: int, progress: Progress, loaders: int | None = None
) -> tuple[Manifest, dict[str, Images]]:
    """The manifest of a published dataset and its images, cached when the limit allows; else `loaders` threads decode.

    Processes on one host that share `caches` make a cache once: the others wait for it.
    """
    manifest = manifests.load(packs)
    total = sum(len(manifest.records(split).files) for split in SPLITS)
    if total * int(np.prod(size)) > limit_mb * 2**20:
        return manifest, {split: Decoded(packs, manifest, split, size, loaders) for split in SPLITS}
    folder = caches / f"{manifest.digest[:16]}-{'x'.join(map(str, size))}"
    with _locked(folder):
        if not folder.is_dir():
            _build(manifest, packs, folder, size, progress)
    return manifest, {split: _open(folder, split) for split in SPLITS}


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _open(folder: Path, split: str) -> Cached:
    pixels = np.load(folder / f"{split}-images.npy", mmap_mode="r")
    return Cached(pixels, np.load(folder / f"{split}-labels.npy"))


def _build(manifest: Manifest, packs: Path, folder: Path, size: tuple[int, ...], progress: Progress) -> None:
    for stale in folder.parent.glob(f".part-{folder.name}-*"):
        shutil.rmtree(stale)
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".part-{folder.name}-"))
    try:
        jobs = list(_jobs(manifest, packs, part, size))
        total, done = sum(job[-1] - job[-2] for job in jobs), 0
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for job, _ in zip(jobs, pool.map(_decode_chunk, jobs), strict=True):
                done += job[-1] - job[-2]
                progress(done, total)
        part.chmod(0o755)
        for path in [*part.iterdir(), part]:
            sync(path)
        part.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


Job = tuple[Path, Path, str, tuple[int, ...], int, int]


def _jobs(manifest: Manifest, packs: Path, part: Path, size: tuple[int, ...]) -> Iterator[Job]:
    for split in SPLITS:
        records = manifest.records(split)
        count = len(records.files)
        np.lib.format.open_memmap(part / f"{split}-images.npy", "w+", np.uint8, (count, *size)).flush()
        np.save(part / f"{split}-labels.npy", np.asarray(records.labels, np.int32))
        step = CHUNK if manifest.shape is None else 8192
        for start in range(0, count, step):
            yield packs, part, split, size, start, min(start + step, count)


_readers: dict[tuple[Path, str], PackReader] = {}


def _decode_chunk(job: Job) -> None:
    packs, part, split, size, start, stop = job
    reader = _readers.get((packs, split)) or PackReader(packs, manifests.load(packs), split)
    _readers[packs, split] = reader
    pixels = np.lib.format.open_memmap(part / f"{split}-images.npy", "r+")
    images = [reader.image(index) for index in range(start, stop)]
    if len({image.shape for image in images}) == 1:
        pixels[start:stop] = fit_batch(np.stack(images), size)
    else:
        pixels[start:stop] = np.stack([fit(image, size) for image in images])
    pixels.flush()
