"""The cost of checking published data and code against their digests before use.

    PYTHONPATH=. .venv/bin/python benchmarks/comparing.py [--images 1500] [--rounds 8]

Pictures are generated and published in a temporary folder, then read with and without the check in turn, by one loader. Times are
CPU time, which other programs on the machine do not affect. The first round is discarded.
"""

import hashlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import script
from benchmarks.analysis import pictures
from control import text
from control.remote import checked_code
from control.runs import package
from trainer.data import cache, manifest

SIZES = ((32, 32, 3), (224, 224, 3))
Row = list[object]


class Unchecked(cache.PackReader):
    """The reader without the check."""

    def _record(self, index: int) -> bytes:
        first, last = self._records.offsets[index], self._records.offsets[index + 1]
        shard, start = self._manifest.locate(first)
        return os.pread(self._files[shard], last - first, start)


def main() -> None:
    """Measure and print."""
    arguments = script.parser(__doc__, images=1500, rounds=8).parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        published = pictures.published(folder / "pictures", arguments.images)
        rows = [decoding(published, manifest.load(published), size, arguments.rounds) for size in SIZES]
        rows += [compared(published, arguments.rounds), started(folder, arguments.rounds)]
    print(text.table(["what", "without", "with", "unit"], rows))


def decoding(published: manifest.Published, contents: manifest.Manifest, size: tuple[int, ...], rounds: int) -> Row:
    """Images read and decoded per second of CPU time."""
    images = cache.Decoded(published.folder, contents, "train", size, 1)
    indices = np.arange(len(contents.train.files))
    readers = [kind(published.folder, contents, "train") for kind in (Unchecked, cache.PackReader)]

    def read(reader: cache.PackReader) -> None:
        images._reader = reader
        images.gather(indices)

    seconds = medians([partial(read, reader) for reader in readers], rounds)
    return [f"decode to {size[0]}x{size[1]}", *(text.Number(len(indices) / value, 0) for value in seconds), "images/s"]


def compared(published: manifest.Published, rounds: int) -> Row:
    """Time to read, check and parse a manifest."""
    data = (published.folder / manifest.FILE).read_bytes()
    seconds = medians([lambda: None, lambda: hashlib.sha256(data).hexdigest()], rounds)
    return [f"digest of a manifest of {len(data) / 1e6:.1f} MB", *(text.Number(value * 1000, 2) for value in seconds), "ms"]


def started(folder: Path, rounds: int) -> Row:
    """Time to start a Python that imports only what its start needs."""
    archive = package.TRAINER.build(folder / "code")
    checked = checked_code.command(sys.executable, str(archive), package.TRAINER.sha256(), str(folder / "caches"))
    plain = {**os.environ, "PYTHONPATH": str(archive)}
    commands = (([sys.executable], plain), (checked, dict(os.environ)))
    ways = [partial(subprocess.run, [*argv, "-c", "pass"], env=environment, check=True) for argv, environment in commands]
    return ["start of the trainer", *(text.Number(value * 1000, 0) for value in medians(ways, 2 * rounds, children)), "ms"]


def medians(ways: Sequence[Callable[[], object]], rounds: int, clock: Callable[[], float] = time.process_time) -> list[float]:
    """The median CPU time of each variant; they take turns."""
    return [statistics.median(seconds) for seconds in script.in_turn(dict(enumerate(ways)), rounds, clock).values()]


def children() -> float:
    """CPU seconds of all child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
