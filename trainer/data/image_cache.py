"""Images ready for training on one node: a packed cache of uint8 pixels, built once per digest and size.

A dataset larger than the cache limit is not cached: its records are decoded during training.

Write access to the shared folder must not be enough to change what is trained. So the manifest is checked against the digest from the
control node, and every record against the manifest's digest each time it is read. A cache on the node's own disk is built from such
checked bytes, and reused as long as its files are untouched.
"""

import functools
import hashlib
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from trainer.common.errors import DatasetError
from trainer.data import local_copy
from trainer.data import manifest as manifests
from trainer.data.images import decode, fit, fit_batch
from trainer.data.local_copy import Progress
from trainer.data.manifest import SPLITS, Manifest, Published
from trainer.data.spec import of_images
from trainer.host.process import die_with_parent

CHUNK = 512
TASKS = 4
"""Tasks per loader and call: more than one, because images differ in size."""


class Images:
    """Random access to the images of one split and the numbers of their classes: `Examples`."""

    def __init__(self, manifest: Manifest, split: str, size: tuple[int, ...]):
        self.spec = of_images(size)
        self._labels = np.asarray(manifest.records(split).labels, np.int32)

    def __len__(self) -> int:
        """The number of images."""
        return len(self._labels)

    def pixels(self, indices: np.ndarray) -> np.ndarray:
        """Images `[len(indices), height, width, channels]` uint8."""
        raise NotImplementedError

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The `pixels`, and labels `[len(indices)]` int32."""
        return self.pixels(indices), self._labels[indices]


class CacheImages(Images):
    """Images in a memory-mapped file."""

    def __init__(self, folder: Path, manifest: Manifest, split: str, size: tuple[int, ...]):
        super().__init__(manifest, split, size)
        self._pixels = np.load(folder / f"{split}-images.npy", mmap_mode="r")

    def pixels(self, indices: np.ndarray) -> np.ndarray:
        """Copy images out of the file (or the kernel's page cache)."""
        return self._pixels[indices]


class DecodingImages(Images):
    """Images decoded from the published packs by a few threads each time they are requested.

    Threads, not processes: Pillow releases the GIL while it decodes and resizes, images need no copy between processes, and
    no process is left behind when a worker is killed.
    """

    def __init__(self, packs: Path, manifest: Manifest, split: str, size: tuple[int, ...], loaders: int | None = None):
        """Decode with `loaders` threads; default: one per core that this process may use."""
        super().__init__(manifest, split, size)
        self._reader = PackReader(packs, manifest, split)
        self._size = size
        self._loaders = loaders or len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(self._loaders, thread_name_prefix="loader")

    def pixels(self, indices: np.ndarray) -> np.ndarray:
        """Read, decode and fit each image."""
        images = np.empty((len(indices), *self._size), np.uint8)

        def load(positions: np.ndarray) -> None:
            for position in positions:
                images[position] = fit(self._reader.image(int(indices[position])), self._size)

        # Several images per task: the executor's overhead per task is as large as decoding a tiny image.
        tasks = np.array_split(np.arange(len(indices)), min(len(indices), TASKS * self._loaders) or 1)
        for _ in self._threads.map(load, tasks):
            pass
        return images


class PackReader:
    """Records of one split in the published pack files, each checked against its digest whenever it is read."""

    def __init__(self, packs: Path, manifest: Manifest, split: str):
        """Open the packs; DatasetError if a file is missing, or the digests differ from the published ones."""
        self._manifest, self._records = manifest, manifest.records(split)
        self._paths = [packs / manifests.shard_name(number) for number in range(len(manifest.shards))]
        try:
            self._files = [os.open(path, os.O_RDONLY) for path in self._paths]
            digests = (packs / manifests.DIGESTS).read_bytes()
        except OSError as error:
            raise DatasetError(f"{error.filename}: can't be read: {error.strerror}. {manifests.REMEDY}") from None
        manifests.check_digest(packs / manifests.DIGESTS, hashlib.sha256(digests).hexdigest(), manifest.sums[manifests.DIGESTS])
        first = 0 if split == "train" else len(manifest.train.files)
        self._digests = digests[32 * first : 32 * (first + len(self._records.files))]

    def image(self, index: int) -> np.ndarray:
        """One image `[height, width, channels]` uint8, decoded but not fitted; DatasetError if its bytes differ from the published ones."""
        data = self._record(index)
        if self._manifest.shape is not None:
            return np.frombuffer(data, np.uint8).reshape(self._manifest.shape)
        return decode(data)

    def _record(self, index: int) -> bytes:
        # Read, not mapped: truncating a mapped file would kill the process with SIGBUS.
        first, last = self._records.offsets[index], self._records.offsets[index + 1]
        shard, start = self._manifest.locate(first)
        data = os.pread(self._files[shard], last - first, start)
        digest, wanted = hashlib.sha256(data).digest(), self._digests[32 * index : 32 * (index + 1)]
        if digest != wanted:
            manifests.check_digest(f"{self._paths[shard]}: {self._records.files[index]}", digest.hex(), wanted.hex())
        return data


def open_images(
    published: Published, caches: Path, size: tuple[int, ...], limit_mb: int, progress: Progress, loaders: int | None = None
) -> tuple[Manifest, dict[str, Images]]:
    """The manifest of a published dataset and its images, cached if the limit allows; otherwise `loaders` threads decode them.

    Processes on one host that share `caches` build a cache once: the others wait for it.
    """
    manifest = manifests.load(published)
    if manifest.table is not None:
        raise DatasetError(f"{published.folder}: columns are published there, not images")
    total = sum(len(manifest.records(split).files) for split in SPLITS)
    if total * int(np.prod(size)) > limit_mb * 2**20:
        return manifest, {split: DecodingImages(published.folder, manifest, split, size, loaders) for split in SPLITS}
    folder = caches / f"{manifest.sha256[:16]}-{'x'.join(map(str, size))}"
    local_copy.once(folder, manifest.sha256, lambda part: _build(manifest, published, part, size, progress))
    return manifest, {split: CacheImages(folder, manifest, split, size) for split in SPLITS}


def _build(manifest: Manifest, published: Published, part: Path, size: tuple[int, ...], progress: Progress) -> None:
    chunks, done = [], 0
    counts = {split: len(manifest.records(split).files) for split in SPLITS}
    step = CHUNK if manifest.shape is None else 8192
    for split, count in counts.items():
        np.lib.format.open_memmap(part / f"{split}-images.npy", "w+", np.uint8, (count, *size)).flush()
        chunks += [(split, start, min(start + step, count)) for start in range(0, count, step)]
    # Helpers left behind would wait for ever, with the lock on the cache.
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), initializer=die_with_parent, initargs=(os.getpid(),)) as pool:
        for finished in pool.map(functools.partial(_decode_chunk, published, part, size), chunks):
            done += finished
            progress(done, sum(counts.values()))


@functools.cache
def _reader(published: Published, split: str) -> PackReader:
    return PackReader(published.folder, manifests.load(published), split)


def _decode_chunk(published: Published, part: Path, size: tuple[int, ...], chunk: tuple[str, int, int]) -> int:
    """Decode images into their file; their number."""
    split, start, stop = chunk
    reader = _reader(published, split)
    pixels = np.lib.format.open_memmap(part / f"{split}-images.npy", "r+")
    images = [reader.image(index) for index in range(start, stop)]
    if len({image.shape for image in images}) == 1:
        pixels[start:stop] = fit_batch(np.stack(images), size)
    else:
        pixels[start:stop] = np.stack([fit(image, size) for image in images])
    pixels.flush()
    return len(images)
