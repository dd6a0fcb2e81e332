"""Source `own`: images or columns from a function in the user's own file.

`FILE.py:FUNCTION` is called with `"train"`, then `"test"`, and returns pairs of an image and its class. An image is the path of a
file, its bytes, or a uint8 array `[height, width]` or `[height, width, 1 or 3]`; a class is a name or a whole number. If its first
result is no such pair, it gives columns: what Keras' `fit` takes, also for `"validation"`. The result is kept until the file changes,
an environment variable that it names, or a file of settings beside it that it names.
"""

import ast
import dataclasses
import dis
import hashlib
import io
import itertools
import os
import re
import shutil
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from warnings import WarningMessage

import numpy as np
from PIL import Image

from control.common import user_files
from control.datasets.listing import checked_examples, unfinished
from control.datasets.listing.checked_examples import HOW as HOW_COLUMNS
from control.datasets.listing.checked_examples import ColumnChoice, ExampleChecker, declared_shapes, noted, value_text
from control.datasets.listing.image_headers import read_image
from control.datasets.listing.kept_columns import Batch, ColumnFolder
from control.datasets.listing.registry import Listing, check_classes, fingerprint, ordered_classes, source
from trainer.common.errors import ConfigError, DatasetError
from trainer.common.files import read_json, sync, write_json
from trainer.data.manifest import SPLITS
from trainer.user_code import user_function
from trainer.user_code.user_function import Function

FIX_SETS = "Fix: compute it at the top, or in a function that both call"
NAME, SEED = "augment", "seed"
"""The function's name and that of its last parameter."""


KEPT = Path(".lockstep/sources/own")
HOW = "a function gives pairs (image, class): a path, bytes, or a uint8 array [height, width, channels]; and a class's name or number"
HOW_EMPTY = "Fix: see whether the function finds its files, and yields or returns what it makes of them"
END = object()
SETTINGS = re.compile(r"[\w-][\w .-]{0,99}\.(ya?ml|toml|json|ini)")
"""Name of a file that a function reads, and does not write."""


@source("own", "FILE.py:FUNCTION", takes=("target", "features"))
class PythonFunction:
    """The images, or columns, that a function returned."""

    def __init__(self, path: str, target: str | None = None, features: Sequence[str] | None = None):
        self._function = user_files.find("dataset", path)
        self._choice = ColumnChoice(target, features, f"dataset={self._function.called}")
        # A copy of the file beside other images is another dataset.
        given = (self._function.path, self._function.name, self._function.source, *sum(self._function.modules.items(), ()))
        texts = {self._function.file: self._function.source, **self._function.modules}
        given += (*_environment(texts), *_beside(texts, Path(self._function.path or self._function.file).parent))
        self._digest = hashlib.sha256("\0".join(map(str, given)).encode()).hexdigest()
        self._kept = KEPT.resolve() / self._digest[:16]
        self._columns = ColumnFolder.of("own", self._digest, target, features)

    def scan(self) -> Listing:
        """Run the function once, and list its result."""
        if not self._columns.exists and not (self._kept / "index.json").is_file():
            self._run()
        if self._columns.exists:
            return self._columns.listing(Path(self._function.file).stem, self._columns.path.name)
        for key, value in (("target", self._choice.target), ("features", self._choice.features)):
            if value is not None:
                raise DatasetError(f"data.{key}={value}: {self._choice.called} has images with classes; leave data.{key} out")
        index = read_json(self._kept / "index.json")
        self._records = index["records"]
        classes = ordered_classes({record[0] for split in SPLITS for record in self._records[split]})
        numbers = {name: number for number, name in enumerate(classes)}
        labels = {split: [numbers[record[0]] for record in self._records[split]] for split in SPLITS}
        files = {split: [f"{split}/{record[0]}/{number:07d}" for number, record in enumerate(self._records[split])] for split in SPLITS}
        check_classes(self._choice.called, labels, classes)
        return Listing(Path(self._function.file).stem, classes, files, labels, self._digest, warnings=index.get("warnings", []))

    def read(self, split: str, index: int) -> bytes:
        """Bytes of an image file."""
        _, first, last = self._records[split][index]
        with (self._kept / "images").open("rb") as stream:
            stream.seek(first)
            return stream.read(last - first)

    def _run(self) -> None:
        function = user_function.load("dataset", self._function)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for name in _sets(getattr(function, "__code__", None)):
                warnings.warn(f"it sets {name} at the top of the file, which models on hosts do not see. {FIX_SETS}", stacklevel=1)
            with user_function.explaining_errors("dataset", self._function):
                result = function("train")
                first, result = _first(result, self._next)
            if first is END:
                raise DatasetError(f"{self._choice.called}: train is empty; it needs at least one example. {HOW_EMPTY}")
            if _is_image_pair(first):
                self._keep_images(function, result, caught)
            else:
                self._keep_columns(function, result, caught)

    def _keep_columns(self, function: Callable[..., Any], train: Any, caught: list[WarningMessage]) -> None:
        called = self._choice.called
        checked = ExampleChecker(called, caught=caught)

        def batches() -> Iterator[Batch]:
            for split in ("train", "validation", "test"):
                result = train if split == "train" else self._call(function, split)
                if result is None and split != "validation":
                    raise DatasetError(f'{called}: it returned None for "{split}"; {HOW_COLUMNS}')
                if result is None:
                    continue
                checked.shapes |= declared_shapes(result, f"{called}: {split}")
                for where, nest in self._each(checked_examples.batches(result, called, split)):
                    yield split, where, self._choice.divided(nest)

        self._columns.write(checked, batches(), self._named_classes(function))

    def _call(self, function: Callable[..., Any], split: str) -> Any:
        """The function's result; None if it has no validation split of its own: it may say so with a KeyError."""
        try:
            with user_function.explaining_errors("dataset", self._function):
                return function(split)
        except ConfigError as error:
            if split == "validation" and isinstance(error.__cause__, KeyError) and error.__cause__.args == (split,):
                return None
            raise

    def _named_classes(self, function: Callable[..., Any]) -> list[str] | None:
        """The function's attribute `classes`: names for the numbers that `y` has."""
        names = getattr(function, "classes", None)
        if names is None:
            return None
        if not isinstance(names, list | tuple) or len(names) < 2 or not all(isinstance(name, str) for name in names):
            raise DatasetError(
                f"{self._choice.called}: its attribute classes is {value_text(names)}; it must be a list of at least two names"
            )
        return list(names)

    def _keep_images(self, function: Callable[..., Any], train: Any, caught: list[WarningMessage]) -> None:
        with unfinished.folder_in(KEPT) as part:
            records: dict[str, list[tuple[str, int, int]]] = {split: [] for split in SPLITS}
            with (part / "images").open("wb") as stream:
                for split in SPLITS:
                    result = train if split == "train" else self._call(function, split)
                    for name, data in self._pairs(result, split):
                        records[split].append((name, stream.tell(), stream.tell() + len(data)))
                        stream.write(data)
            sync(part / "images")
            write_json(part / "index.json", {"records": records, "warnings": noted(self._choice.called, caught)})
            shutil.rmtree(self._kept, ignore_errors=True)
            part.rename(self._kept)

    def _pairs(self, result: Any, split: str) -> Iterator[tuple[str, bytes]]:
        called = self._choice.called
        for number, pair in enumerate(self._each(result)):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise DatasetError(f"{called}: number {number} of {split} is {_shown(pair)}; {HOW}")
            image, label = pair
            yield _class(label, f"{called}: the class of number {number} of {split}"), _bytes(image, f"{called}: image {number} of {split}")

    def _each(self, result: Any) -> Iterator[Any]:
        """The function's results, one at a time: all of them may not fit into memory."""
        with user_function.explaining_errors("dataset", self._function):
            iterator = iter(result)
        while (item := self._next(iterator)) is not END:
            yield item

    def _next(self, iterator: Iterator[Any]) -> Any:
        with user_function.explaining_errors("dataset", self._function):
            return next(iterator, END)


def _environment(texts: Mapping[str, str]) -> Iterator[str]:
    """The environment variables that a user's files name, with their values, and the size and time of a file whose path a value is."""
    for file, text in texts.items():
        if "environ" in text or "getenv" in text:
            constants = {node.value for node in ast.walk(user_files.tree(file, text)) if isinstance(node, ast.Constant)}
            for name in sorted(set(os.environ).intersection(constants)):
                value = os.environ[name]
                yield f"{name}={value}={fingerprint([Path(value)]) if os.path.isfile(value) else ''}"


def _beside(texts: Mapping[str, str], folder: Path) -> Iterator[str]:
    """The files of settings in the folder of a user's file that it names (`"rules.yml"`), with their sizes and times."""
    for file, text in texts.items():
        words = {node.value for node in ast.walk(user_files.tree(file, text)) if isinstance(node, ast.Constant)}
        names = sorted(word for word in words if isinstance(word, str) and SETTINGS.fullmatch(word))
        yield from (f"{name}={fingerprint([folder / name])}" for name in names if (folder / name).is_file())


def _first(result: Any, take: Callable[[Iterator[Any]], Any]) -> tuple[Any, Any]:
    """The first item of a result, END if it has none, and the result as if nobody had looked."""
    if isinstance(result, list | tuple):
        return (result[0] if result else END), result
    if hasattr(result, "as_numpy_iterator"):
        return take(result.as_numpy_iterator()), result
    if checked_examples.is_whole(result):
        return None, result
    iterator = iter(result)
    first = take(iterator)
    return first, itertools.chain([] if first is END else [first], iterator)


def _is_image_pair(item: Any) -> bool:
    """Return whether an item is meant as one image and its class, not as a batch of examples."""
    if not isinstance(item, tuple) or len(item) < 2:
        return False
    image, label = item[:2]
    if isinstance(image, bytes | str | Path):
        return True
    shape = tuple(getattr(image, "shape", ()))
    if getattr(image, "dtype", None) == np.uint8 and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))):
        # A batch has as many labels as images.
        return _is_scalar(label) or len(label) != shape[0]
    return len(shape) in (2, 3) and label is not None and _is_scalar(label)


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, list | tuple | dict) and getattr(value, "shape", ()) == ()


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
            return read_image(Path(image).expanduser())
        except (OSError, ValueError) as error:
            raise DatasetError(f"{where}: {image}: {getattr(error, 'strerror', None) or error}") from None
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3)):
        raise DatasetError(f"{where} is an array {list(pixels.shape)} of {pixels.dtype}; {HOW}")
    stream = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def augmentation(function: Function) -> tuple[dict[str, str] | None, str | None]:
    """The configuration key `data.augment` for a dataset's file; and a warning if the file's function `augment` is not such a one."""
    if function.name == NAME:
        # It is that of the data.
        return None, None
    try:
        arguments = user_files.parameters("dataset", dataclasses.replace(function, name=NAME))
    except ConfigError:
        return None, None
    names = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    if names[-1:] != [SEED]:
        return None, (
            f"{function.file} has a function {NAME}({', '.join(names)}), which changes no examples: its last parameter must be {SEED}. "
            f"Fix: def {NAME}(x, y, {SEED}), or another name"
        )
    return dataclasses.replace(function, name=NAME).entry, None


def _sets(code: types.CodeType | None) -> list[str]:
    """Variables of its module that a function, or one in it, sets: it runs once and here, and models are built on hosts."""
    if code is None:
        return []
    inner = [name for one in code.co_consts if isinstance(one, types.CodeType) for name in _sets(one)]
    return sorted({*inner, *(one.argval for one in dis.get_instructions(code) if one.opname == "STORE_GLOBAL")})
