"""Source `own`: images from a function in the user's own file.

`FILE.py:FUNCTION` is called with `"train"`, then `"test"`, and returns pairs of an image and its class. An image is the path of a
file, its bytes, or a uint8 array `[height, width]` or `[height, width, 1 or 3]`; a class is a name or a whole number. The result is
kept until the file changes.
"""

import hashlib
import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from control.datasets.sources import Listing, check_classes, source
from trainer import own
from trainer.data.manifest import SPLITS
from trainer.errors import DatasetError
from trainer.files import read_json, sync, write_json

KEPT = Path(".lockstep/sources/own")
HOW = "a function gives pairs (image, class): a path, bytes, or a uint8 array [height, width, channels]; and a class's name or number"
END = object()


@source("own", "FILE.py:FUNCTION")
class Own:
    """The images that a function returned."""

    def __init__(self, path: str):
        self._function = own.find("dataset", path)
        # A copy of the file beside other images is another dataset.
        given = (self._function.path, self._function.name, self._function.source)
        self._digest = hashlib.sha256("\0".join(map(str, given)).encode()).hexdigest()
        self._kept = KEPT.resolve() / self._digest[:16]

    def scan(self) -> Listing:
        """Run the function once, and list its result."""
        if not (self._kept / "index.json").is_file():
            self._run()
        index = read_json(self._kept / "index.json")
        self._records = index["records"]
        classes = _in_order({record[0] for split in SPLITS for record in self._records[split]})
        labels = {split: [classes.index(record[0]) for record in self._records[split]] for split in SPLITS}
        files = {split: [f"{split}/{record[0]}/{number:07d}" for number, record in enumerate(self._records[split])] for split in SPLITS}
        check_classes(f"dataset={self._function.called}", labels, classes)
        return Listing(Path(self._function.file).stem, classes, files, labels, self._digest, None)

    def read(self, split: str, index: int) -> bytes:
        """Bytes of an image file."""
        _, first, last = self._records[split][index]
        with (self._kept / "images").open("rb") as stream:
            stream.seek(first)
            return stream.read(last - first)

    def _run(self) -> None:
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT, prefix=".part-", ignore_cleanup_errors=True) as folder:
            part = Path(folder)
            records: dict[str, list[tuple[str, int, int]]] = {split: [] for split in SPLITS}
            function = own.load("dataset", self._function)
            with (part / "images").open("wb") as stream:
                for split in SPLITS:
                    for name, data in self._pairs(function, split):
                        records[split].append((name, stream.tell(), stream.tell() + len(data)))
                        stream.write(data)
            sync(part / "images")
            write_json(part / "index.json", {"records": records})
            shutil.rmtree(self._kept, ignore_errors=True)
            part.rename(self._kept)

    def _pairs(self, function: Callable[..., Any], split: str) -> Iterator[tuple[str, bytes]]:
        called = f"dataset={self._function.called}"
        for number, pair in enumerate(self._results(function, split)):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise DatasetError(f"{called}: number {number} of {split} is {_shown(pair)}; {HOW}")
            image, label = pair
            yield _class(label, f"{called}: the class of number {number} of {split}"), _bytes(image, f"{called}: image {number} of {split}")

    def _results(self, function: Callable[..., Any], split: str) -> Iterator[Any]:
        """The function's results, one at a time: all of them may not fit into memory."""
        with own.explaining_errors("dataset", self._function):
            iterator = iter(function(split))
        while True:
            with own.explaining_errors("dataset", self._function):
                pair = next(iterator, END)
            if pair is END:
                return
            yield pair


def _in_order(classes: set[str]) -> list[str]:
    """Names alphabetically; numbers, if all are, by value."""
    numbers = all(name.isdecimal() for name in classes)
    return sorted(classes, key=lambda name: (int(name), name) if numbers else (0, name))


def _class(label: Any, where: str) -> str:
    if isinstance(label, str):
        return label
    try:
        number = np.asarray(label)
    except ValueError:  # lists of different lengths
        number = np.asarray(None)
    if number.dtype.kind not in "iu" or number.size != 1:
        raise DatasetError(f"{where} is {_shown(label)} ({type(label).__name__}); {HOW}")
    return str(number.item())


def _bytes(image: Any, where: str) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | Path):
        try:
            return Path(image).expanduser().read_bytes()
        except OSError as error:
            raise DatasetError(f"{where}: {image}: {error.strerror}") from None
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3)):
        raise DatasetError(f"{where} is an array {list(pixels.shape)} of {pixels.dtype}; {HOW}")
    stream = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
