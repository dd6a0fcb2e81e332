"""The examples of `predict.yml`, whose targets need not be known: read once, checked against those of the training, divided over hosts.

Images: a folder of them, one image, or the test images of a dataset. Columns: CSV or Parquet files, or a function of the user's own.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from control.common import user_files
from control.datasets.listing.checked_examples import ExampleChecker, batches, declared_shapes, listed, value_text
from control.datasets.listing.column_writer import Writer
from control.datasets.listing.image_headers import EXTENSIONS, read_image
from control.datasets.listing.registry import alone, detect, is_table, open_source
from control.datasets.sources import tables
from trainer.common.errors import DatasetError
from trainer.common.files import write_json
from trainer.common.safe_text import printable
from trainer.common.suggest import nearest
from trainer.data.columns import allow_open, file_names
from trainer.data.images import decode, fit
from trainer.data.spec import Spec
from trainer.evaluation.predict import BLOCK, JOB, SPLIT
from trainer.user_code import user_function

HOW_IMAGES = "give a folder of images, an image (JPEG, PNG, BMP, GIF), or a dataset of images, whose test images are then predicted"
HOW_COLUMNS = "give CSV or Parquet files with the columns that the model was trained on, or FILE.py:FUNCTION"
NAMES = "names.json"
"""Names of images, in the folder of the parts."""
SHOWN = 5
Progress = Callable[[int], None]


@dataclass
class Pictures:
    """Images by name."""

    names: list[str]
    read: Callable[[int], np.ndarray]
    """`[height, width, channels]` uint8; ValueError or OSError if it can't be read."""


class Parts:
    """Rows divided over hosts: whole blocks in turn, so that every host's part is in order."""

    def __init__(self, folder: Path, spec: Spec, hosts: int):
        """Begin a folder for each host, by number."""
        self.folder, self.count = folder, 0
        self._writers: list[Writer] = []
        allow_open(hosts * len(file_names(spec)))
        for rank in range(hosts):
            (folder / str(rank)).mkdir(parents=True)
            self._writers.append(Writer(folder / str(rank), spec, SPLIT))

    def append(self, values: list[Any]) -> None:
        """Add n rows of each leaf."""
        start, total = 0, len(values[0])
        while start < total:
            stop = min(total, start + BLOCK - self.count % BLOCK)
            self._writers[self.count // BLOCK % len(self._writers)].append([value[start:stop] for value in values])
            self.count += stop - start
            start = stop

    def close(self) -> list[int]:
        """Complete the files; rows by host."""
        for writer in self._writers:
            writer.close()
        return [writer.count for writer in self._writers]

    def write_jobs(self, spec: Spec, classes: int) -> None:
        """Write the rest of each host's job beside its rows: the spec of the training's examples, and how many classes there are."""
        for rank, writer in enumerate(self._writers):
            write_json(self.folder / str(rank) / JOB, {"spec": spec.to_json(), "classes": classes, "rows": writer.count})

    @staticmethod
    def place(row: int, hosts: int) -> tuple[int, int]:
        """The host of the block that begins with a row, and the row's number there."""
        block = row // BLOCK
        return block % hosts, block // hosts * BLOCK


def write_examples(given: str, called: str, spec: Spec, images: tuple[int, ...] | None, parts: Parts, progress: Progress) -> list[str]:
    """Read all examples into parts; warnings.

    Args:
        given: a path, a dataset's name, or `FILE.py:FUNCTION`; relative paths to the current folder.
        called: it, as the user typed it, for messages.
        spec: of the examples that the model was trained on.
        images: size of the model's images `(height, width, channels)`; None: it takes columns.
        parts: to write to.
        progress: called with the number of rows read.

    Raises:
        DatasetError: they can't be read, or are none that the model takes; or there is none.
    """
    if images is not None:
        pictures = _pictures(given, called)
        (parts.folder / NAMES).write_text(json.dumps(pictures.names), encoding="utf-8")
        for block in _fitted(pictures, images, called):
            parts.append([block])
            progress(parts.count)
        return []
    checked = ExampleChecker(called, spec=spec.inputs, first="training", casting="same_kind")
    for where, nest in _columns(given, called, spec, checked):
        for values in checked.slices((_as_trained(nest, spec.structure[0], called),), "the input", where):
            parts.append(values)
        progress(parts.count)
    if not parts.count:
        raise DatasetError(f"{called} has no rows; {HOW_COLUMNS}")
    most = ", ".join(f"{name} {count:,}" for name, count in list(checked.not_finite.items())[:SHOWN])
    return [f"{called} has values that are missing (NaN) or infinite: {printable(most, 500)}"] if most else []


def _pictures(given: str, called: str) -> Pictures:
    path = Path(given).expanduser()
    if path.is_dir() and not any(_is_dataset(entry.name) for entry in path.iterdir()):
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in EXTENSIONS and file.is_file())
        files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        if not files:
            raise DatasetError(f"{called}: there is no image in that folder; {HOW_IMAGES}")
        return Pictures([_text(file.relative_to(path)) for file in files], lambda number: decode(read_image(files[number])))
    if path.is_file() and not _is_dataset(path.name):
        return Pictures([_text(Path(path.name))], lambda _: decode(read_image(path)))
    if not path.exists() and ".py:" not in given and given not in alone():
        raise DatasetError(f"{called}: no such file or folder; {HOW_IMAGES}")
    detected = detect(given)
    source = open_source(str(detected["source"]), detected["path"])
    listing = source.scan()
    if listing.table is not None:
        raise DatasetError(f"{called} gives columns, and the model takes images; {HOW_IMAGES}")
    shape = listing.shape

    def read(number: int) -> np.ndarray:
        data = source.read(SPLIT, number)
        return decode(data) if shape is None else np.frombuffer(data, np.uint8).reshape(shape)

    return Pictures([f"{SPLIT}/{number}" for number in range(listing.count(SPLIT))] if shape else listing.files[SPLIT], read)


def _text(path: Path) -> str:
    """A path as UTF-8, which not every name is."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _is_dataset(name: str) -> bool:
    """Return whether a file's name is that of a dataset in MNIST's format or of TFRecords."""
    return ("idx" in name and "ubyte" in name) or ".tfrecord" in name


def _fitted(pictures: Pictures, size: tuple[int, ...], called: str) -> Iterator[np.ndarray]:
    """Images in blocks `[n, *size]`, in order."""

    def load(number: int) -> np.ndarray:
        try:
            return fit(pictures.read(number), size)
        except (OSError, ValueError) as error:
            name = pictures.names[number]
            where = "" if called.endswith(name) else f" {printable(name)}"
            raise DatasetError(f"{called}:{where} can't be read: {printable(error, 300)}. Fix or remove it") from None

    # Pillow releases Python's lock while it decodes and resizes.
    with ThreadPoolExecutor(thread_name_prefix="loader") as threads:
        for start in range(0, len(pictures.names), BLOCK):
            yield np.stack(list(threads.map(load, range(start, min(start + BLOCK, len(pictures.names))))))


def _columns(given: str, called: str, spec: Spec, checked: ExampleChecker) -> Iterator[tuple[str, Any]]:
    """Blocks of `x` with their names in messages."""
    if ".py:" in given:
        yield from _of_function(user_files.find("input", given), called, checked)
        return
    path = Path(given).expanduser()
    if not path.exists() or not (path.is_dir() or is_table(path)):
        raise DatasetError(f"{called}: no such file or folder, or no table; {HOW_COLUMNS}")
    inputs = spec.inputs
    if not isinstance(inputs.structure[0], dict) or any(leaf.shape for leaf in inputs.leaves):
        listed = printable(", ".join(map(str, inputs.leaves[:SHOWN])), 500)
        raise DatasetError(
            f"{called} is a table, and the model was trained on arrays: {listed}. Fix: give FILE.py:FUNCTION, which returns them"
        )
    types = {name: inputs.leaves[place].dtype for name, place in inputs.structure[0].items()}
    yield from tables.rows(path, types, called)


def _of_function(function: user_function.Function, called: str, checked: ExampleChecker) -> Iterator[tuple[str, Any]]:
    """Results of the user's function, called without arguments or, as one of a dataset, for the test examples."""
    parameters, call = user_files.parameters("input", function), user_function.load("input", function)
    with user_function.explaining_errors("input", function):
        result = call(SPLIT) if [*parameters.posonlyargs, *parameters.args] else call()
    if result is None:
        raise DatasetError(f"{called}: it returned None; {HOW_COLUMNS}")
    assert checked.spec is not None
    checked.shapes |= {name: shape for name, shape in declared_shapes(result, called).items() if name in checked.spec.names}
    blocks = batches(result, called, SPLIT)
    while True:
        with user_function.explaining_errors("input", function):
            block = next(blocks, None)
        if block is None:
            return
        where, nest = block
        yield where, nest[0] if isinstance(nest, tuple | list) else nest


def _as_trained(nest: Any, structure: Any, called: str) -> Any:
    """A nest with the keys of the one that the model was trained on, in their order; others are left out."""
    if isinstance(structure, dict) and (isinstance(nest, Mapping) or hasattr(nest, "columns")):
        keys = list(nest)
        for key in structure:
            if key not in keys:
                why = f"it has no {key}, which the model takes{nearest(key, map(str, keys))}; it has: {listed(keys[:20])}"
                raise DatasetError(f"{called}: {why}")
        return {key: _as_trained(nest[key], part, called) for key, part in structure.items()}
    if isinstance(structure, list) and isinstance(nest, list | tuple) and len(nest) == len(structure):
        return [_as_trained(part, one, called) for part, one in zip(nest, structure, strict=True)]
    if isinstance(structure, dict | list):
        raise DatasetError(f"{called}: it gives {value_text(nest)}, and the model takes a {type(structure).__name__} of {len(structure)}")
    return nest
