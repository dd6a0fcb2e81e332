"""The cost of checking published data and code against their digests before use.

    PYTHONPATH=. .venv/bin/python benchmarks/comparing.py [--images 1500] [--rounds 8]

Pictures are generated and published in a temporary folder, then read with and without the check in turn, by one loader. Times are
CPU time, which other programs on the machine do not affect. The first round is discarded.
"""

import argparse
import hashlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.analysis import pictures
from control import text
from control.datasets import publish
from control.datasets.folder import Folder
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        pictures.make(place / "pictures", arguments.images, 1, lambda *_: None)
        made = publish.publish(Folder(str(place / "pictures")), place / "packs", False, lambda *_: None)
        published = publish.place_of(place / "packs", made.sha256)
        rows = [decoding(published, made, size, arguments.rounds) for size in SIZES]
        rows += [compared(published, arguments.rounds), started(place, arguments.rounds)]
    print(text.table(["what", "without", "with", "unit"], rows))


def decoding(published: manifest.Published, made: manifest.Manifest, size: tuple[int, ...], rounds: int) -> Row:
    """Images read and decoded per second of CPU time."""
    images = cache.Decoded(published.folder, made, "train", size, 1)
    indices = np.arange(len(made.train.files))
    readers = [kind(published.folder, made, "train") for kind in (Unchecked, cache.PackReader)]

    def one(reader: cache.PackReader) -> float:
        images._reader = reader
        return processor(lambda: images.gather(indices))

    seconds = in_turn([lambda reader=reader: one(reader) for reader in readers], rounds)  # type: ignore[misc]
    return [f"decode to {size[0]}x{size[1]}", *(text.Number(len(indices) / value, 0) for value in seconds), "images/s"]


def compared(published: manifest.Published, rounds: int) -> Row:
    """Time to read, check and parse a manifest."""
    data = (published.folder / manifest.FILE).read_bytes()
    seconds = in_turn([lambda: processor(lambda: None), lambda: processor(lambda: hashlib.sha256(data).hexdigest())], rounds)
    return [f"digest of a manifest of {len(data) / 1e6:.1f} MB", *(text.Number(value * 1000, 2) for value in seconds), "ms"]


def started(place: Path, rounds: int) -> Row:
    """Time to start a Python that imports only what its start needs."""
    archive = package.TRAINER.build(place / "code")
    checked = checked_code.command(sys.executable, str(archive), package.TRAINER.sha256(), str(place / "caches"))
    plain = {**os.environ, "PYTHONPATH": str(archive)}
    ways = [lambda: child([sys.executable, "-c", "pass"], plain), lambda: child([*checked, "-c", "pass"], dict(os.environ))]
    return ["start of the trainer", *(text.Number(value * 1000, 0) for value in in_turn(ways, 2 * rounds)), "ms"]


def in_turn(ways: list[Callable[[], float]], rounds: int) -> list[float]:
    """The median of each variant; they take turns."""
    taken = [[way() for way in ways] for _ in range(rounds + 1)][1:]
    return [statistics.median(values) for values in zip(*taken, strict=True)]


def processor(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def child(argv: list[str], environment: dict[str, str]) -> float:
    """CPU seconds of another process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
