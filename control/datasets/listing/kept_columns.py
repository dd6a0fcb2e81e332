"""Columns of any type: written once from a source's batches into `.lockstep/sources/columns`, then published as they are.

Source `columns`: CSV and Parquet files, `control.datasets.sources.tables`; functions of the user's own:
`control.datasets.sources.python_function`.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from control.datasets.listing import unfinished
from control.datasets.listing.checked_examples import ExampleChecker, value_text
from control.datasets.listing.column_writer import Writer
from control.datasets.listing.registry import Listing, ordered_classes
from control.datasets.listing.specs import checked_table
from trainer.common.errors import DatasetError
from trainer.common.files import read_json, sha256_file, sync, write_json
from trainer.data.columns import allow_open, file_names, rows_name
from trainer.data.manifest import SPLITS, Table
from trainer.data.spec import STRING, Leaf, Spec

KEPT = Path(".lockstep/sources/columns")
INDEX = "index.json"
WRITTEN = 4
"""Increased when columns are written differently: those kept before are then written again."""
REMAPPED = 2**20
"""Classes that are renumbered at a time."""
MOST_CLASSES = 100_000
Batch = tuple[str, str, Any]
"""Its split (`train`, then `validation`, and `test`), its name in messages, what `fit` takes."""


@dataclass(frozen=True)
class ColumnFolder:
    """Columns of a source on this machine, in a folder that is complete or absent."""

    path: Path

    @classmethod
    def of(cls, *identity: object) -> "ColumnFolder":
        """That of a source with that identity."""
        key = "\0".join(map(str, (WRITTEN, *identity)))
        return cls(KEPT.resolve() / hashlib.sha256(key.encode()).hexdigest()[:16])

    @property
    def exists(self) -> bool:
        """True if it has the columns, in all of their files."""
        return (self.path / INDEX).is_file() and all(file.is_file() for file in self._files())

    @property
    def size(self) -> int:
        """Bytes of the columns' files."""
        return sum(file.stat().st_size for file in self._files())

    def listing(self, name: str, fingerprint: str, note: str = "") -> Listing:
        """Listing of the columns."""
        index = self._index()
        return Listing(
            name,
            index["classes"],
            {},
            {},
            fingerprint,
            held_out=index["held_out"],
            note="; ".join(text for text in (index["note"], note) if text),
            table=checked_table(index["table"]),
            folder=self.path,
            warnings=index["warnings"],
            targets=index["targets"],
        )

    def write(self, checked: ExampleChecker, batches: Iterable[Batch], classes: Sequence[str] | None = None) -> None:
        """Write the columns.

        Args:
            checked: names the dataset in messages.
            batches: the source's.
            classes: names of the classes if `y` is their number; a `y` of strings has them itself.

        Raises:
            DatasetError: what `ExampleChecker` refuses, an empty split, a class that `train` lacks.
        """
        with unfinished.folder_in(KEPT) as part:
            columns = _Columns(part, checked, classes)
            try:
                for split, where, nest in batches:
                    for values in checked.slices(nest, split, where):
                        columns.add(split, values)
            finally:
                columns.close()
            index = columns.index()
            write_json(part / INDEX, {**index, "sums": {path.name: sha256_file(path) for path in sorted(part.iterdir())}})
            shutil.rmtree(self.path, ignore_errors=True)
            part.rename(self.path)

    def copy(self, target: Path, progress: Callable[[int, int], None]) -> dict[str, str]:
        """Copy the files into a folder; their SHA-256 by name.

        Copied, not linked: who can write to a shared folder must not reach the files here.

        Raises:
            DatasetError: a file has changed since it was written.
        """
        table, sums, size, done = self._table(), self._index()["sums"], self.size or 1, 0
        total, files = table.train + table.test, self._files()
        for file in files:
            shutil.copyfile(file, target / file.name)
            sync(target / file.name)
            if sha256_file(target / file.name) != sums[file.name]:
                why = "the disk is damaged, or somebody wrote there"
                raise DatasetError(f"{file} has changed since it was written: {why}. Fix: rm -r {self.path}")
            done += file.stat().st_size
            progress(total * done // size, total)
        return {file.name: sums[file.name] for file in files}

    def _index(self) -> dict[str, Any]:
        return dict(read_json(self.path / INDEX))

    def _table(self) -> Table:
        return checked_table(self._index()["table"])

    def _files(self) -> list[Path]:
        return [self.path / name for name in file_names(self._table().spec)]


class _Columns:
    """Writers of both splits, opened by the first batch; validation examples are the last of `train`."""

    def __init__(self, part: Path, checked: ExampleChecker, classes: Sequence[str] | None):
        self._part, self._checked, self._given = part, checked, classes
        self._writers: dict[str, Writer] = {}
        self._numbers: dict[str, int] = {}
        self._label: int | None = None
        self._spec: Spec | None = None
        self._counts = dict.fromkeys((*SPLITS, "validation"), 0)
        self._digests = {split: hashlib.sha256() for split in ("validation", "test")}
        self._trained: set[int] = set()
        self._targets: dict[str, list[float]] = {}

    def add(self, split: str, values: list[Any]) -> None:
        if self._spec is None:
            self._begin()
        assert self._spec is not None
        if self._label is not None:
            values[self._label] = self._classes_of(split, values[self._label])
        elif self._given is not None:
            self._check_given(split, values)
        self._widen(split, values)
        # Only two splits of the function's own can be the same by mistake.
        if split == "validation" or (split == "test" and self._counts["validation"]):
            for value in values:
                for content in _contents(value):
                    self._digests[split].update(content)
        self._writers["test" if split == "test" else "train"].append(values)
        self._counts[split] += len(values[0])

    def _begin(self) -> None:
        spec = self._checked.spec
        assert spec is not None
        label = _label_of(spec)
        if self._given is not None and (label is None or "int" not in spec.leaves[label].dtype):
            given = ", ".join(map(str, spec.parts.get("y", ()))) or "missing"
            raise DatasetError(f"{self._checked.called}: it names classes, and y is {given}; it must be one whole number per example")
        if label is not None and spec.leaves[label].dtype == STRING:
            self._label = label
            leaves = list(spec.leaves)
            leaves[label] = Leaf(spec.leaves[label].name, "int32", ())
            spec = Spec(spec.structure, tuple(leaves))
        _check_strings(spec, self._checked.called)
        self._spec = spec
        allow_open(len(file_names(spec)))
        self._writers = {split: Writer(self._part, spec, split) for split in SPLITS}

    def _classes_of(self, split: str, names: Sequence[Any]) -> np.ndarray:
        """Numbers of classes in the order in which they came."""
        texts = [name.decode(errors="backslashreplace") if isinstance(name, bytes) else name for name in names]
        numbers = np.array([self._numbers.setdefault(text, len(self._numbers)) for text in texts], np.int32)
        if len(self._numbers) > MOST_CLASSES:
            raise DatasetError(f"{self._checked.called}: y has more than {MOST_CLASSES:,} different texts; is it a class?")
        if split == "train":
            self._trained.update(numbers.tolist())
        return numbers

    def _check_given(self, split: str, values: list[Any]) -> None:
        assert self._given is not None
        assert self._spec is not None
        labels = values[_label_of(self._spec) or 0]
        if labels.min() < 0 or labels.max() >= len(self._given):
            odd = labels[(labels < 0) | (labels >= len(self._given))][0]
            raise DatasetError(
                f"{self._checked.called}: y of {split} has {odd}; with {len(self._given)} classes it runs from 0 to {len(self._given) - 1}"
            )

    def _widen(self, split: str, values: list[Any]) -> None:
        """Take note of the lowest and the highest number of a single `y`."""
        assert self._spec is not None
        y = self._spec.parts.get("y", ())
        if len(y) == 1 and not y[0].varies and values[self._spec.leaves.index(y[0])].size:
            numbers = values[self._spec.leaves.index(y[0])]
            seen = [*self._targets.get(split, []), numbers.min().item(), numbers.max().item()]
            self._targets[split] = [min(seen), max(seen)]

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def index(self) -> dict[str, Any]:
        called = self._checked.called
        for split in SPLITS:
            if not self._counts[split]:
                raise DatasetError(f"{called}: {split} is empty; it needs at least one example")
        assert self._spec is not None
        held, note, warnings = self._counts["validation"], "", self._checked.warnings()
        if held and self._digests["validation"].digest() == self._digests["test"].digest():
            # As from a function that asks only whether it is "train".
            warnings.append(
                f"{called}: validation and test have the same examples, so the test measures nothing new. "
                'Fix: return None for "validation" (part of train is then held out), or other examples'
            )
        if held:
            note = f"{held:,} examples for validation are the dataset's own"
        table = Table(self._spec, self._counts["train"] + held, self._counts["test"])
        return {
            "table": table.to_json(),
            "held_out": held or None,
            "classes": list(self._given) if self._given is not None else self._ordered(),
            "note": note,
            "warnings": warnings,
            "targets": self._targets,
        }

    def _ordered(self) -> list[str]:
        """Names of the classes, by value if all are numbers; rewrites their numbers in this order."""
        if self._label is None:
            return []
        unknown = sorted(set(self._numbers.values()) - self._trained)
        if unknown:
            name = next(text for text, number in self._numbers.items() if number == unknown[0])
            raise DatasetError(
                f"{self._checked.called}: the class {value_text(name)} is not in train; validation and test may only have its classes. "
                "Fix: leave such examples out, or move some into train"
            )
        ordered = ordered_classes(set(self._numbers))
        assert self._spec is not None
        places = np.empty(len(ordered), np.int32)
        for place, text in enumerate(ordered):
            places[self._numbers[text]] = place
        for split in SPLITS:
            rows = np.lib.format.open_memmap(self._part / rows_name(split), "r+", max_header_size=2**20)
            for start in range(0, len(rows), REMAPPED):
                labels = rows[str(self._label)][start : start + REMAPPED]
                labels[:] = places[labels]
            rows.flush()
        return ordered


def _contents(value: Any) -> Iterator[bytes]:
    """The bytes of a leaf's values, all or one example at a time."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        yield value.tobytes()
        return
    for example in value.ravel() if isinstance(value, np.ndarray) else value:
        if isinstance(example, np.ndarray) and example.dtype.kind != "O":
            yield repr(example.shape).encode() + example.tobytes()
        else:
            yield repr(example.tolist() if isinstance(example, np.ndarray) else example).encode()


def _label_of(spec: Spec) -> int | None:
    """The leaf that is all of `y`, a single value."""
    if len(spec.structure) < 2 or not isinstance(spec.structure[1], int) or spec.leaves[spec.structure[1]].shape != ():
        return None
    return spec.structure[1]


def _check_strings(spec: Spec, called: str) -> None:
    spec.row_dtype()
    for part in ("y", "sample_weight"):
        odd = [leaf.name for leaf in spec.parts.get(part, ()) if leaf.dtype == STRING]
        if odd:
            raise DatasetError(f"{called}: {odd[0]} has strings, and a loss takes numbers; only a single y may be a class's name")
