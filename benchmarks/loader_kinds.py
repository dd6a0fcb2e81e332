"""Loaders as threads against loaders as processes: how many images per second each decodes.

    .venv/bin/python benchmarks/loader_kinds.py [--images 512] [--rounds 7] [--loaders 1,2,3,4]

Training uses threads (`trainer.data.cache.Decoded`). Processes read and decode the same published images and send
back arrays. Both get the images of one call at a time and take turns in each round, so that both see the same machine. Three cases:
pictures of 200 to 300 pixels per side decoded to 32x32 and to 224x224, and tiny ones of 32x32. Prints medians.
"""

import functools
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks import script
from benchmarks.analysis import pictures
from control import text
from trainer.data import manifest
from trainer.data.cache import TASKS, Decoded, PackReader
from trainer.data.images import fit

TINY = 32
CASES = {"pictures to 32x32": (32, 32, 3), "pictures to 224x224": (224, 224, 3), "tiny to 32x32": (32, 32, 3)}
_readers: list[PackReader] = []


def main() -> None:
    """Measure and print."""
    parser = script.parser(__doc__, images=512, rounds=7)
    parser.add_argument("--loaders", default="1,2,3,4")
    arguments = parser.parse_args()
    numbers = [int(one) for one in arguments.loaders.split(",")]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for case, size in CASES.items():
            tiny = case.startswith("tiny")
            packs = pictures.published(Path(temporary) / ("tiny" if tiny else "pictures"), arguments.images, TINY if tiny else None)
            rows += [[case, *row] for row in compare(packs, size, arguments.images, arguments.rounds, numbers)]
            print(f"{case}: done", flush=True)
    print(text.table(["case", "loaders", "threads, images/s", "processes, images/s"], rows))


def compare(packs: manifest.Published, size: tuple[int, ...], images: int, rounds: int, numbers: list[int]) -> list[list[object]]:
    """Images/s of threads and processes for each number of loaders (medians of the rounds without the first)."""
    indices = np.random.default_rng(pictures.SEED).permutation(images)
    kinds = {"threads": threads, "processes": processes}
    ways = {(number, kind): way(packs, size, number) for number in numbers for kind, way in kinds.items()}
    seconds = script.in_turn({key: functools.partial(gather, indices) for key, gather in ways.items()}, rounds)
    rates = {key: text.Number(images / statistics.median(values), 0) for key, values in seconds.items()}
    return [[number, rates[number, "threads"], rates[number, "processes"]] for number in numbers]


def threads(packs: manifest.Published, size: tuple[int, ...], number: int) -> Callable[[np.ndarray], np.ndarray]:
    """Decoding as in training."""
    return Decoded(packs.folder, manifest.load(packs), "train", size, number).gather


def processes(packs: manifest.Published, size: tuple[int, ...], number: int) -> Callable[[np.ndarray], np.ndarray]:
    """Decoding in separate processes, which send arrays back."""
    pool = ProcessPoolExecutor(number, initializer=_open, initargs=(packs,))

    def gather(indices: np.ndarray) -> np.ndarray:
        parts = np.array_split(indices, min(len(indices), TASKS * number))
        return np.concatenate(list(pool.map(_decode, parts, [size] * len(parts))))

    return gather


def _open(packs: manifest.Published) -> None:
    _readers.append(PackReader(packs.folder, manifest.load(packs), "train"))


def _decode(indices: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    return np.stack([fit(_readers[0].image(int(index)), size) for index in indices])


if __name__ == "__main__":
    main()
