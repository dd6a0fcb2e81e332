"""Spec of one example of a dataset: the nest that `fit` takes, and the type and shape of each of its arrays."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trainer.common.errors import DatasetError

STRING = "string"
PARTS = ("x", "y", "sample_weight")
LARGEST_RECORD = 2**31 - 1
"""Bytes of an example's leaves of fixed size."""


@dataclass(frozen=True)
class Leaf:
    """One array of an example."""

    name: str
    """Its place in the nest: `x`, `x.age`, `x[1]`, `y`."""
    dtype: str
    """A type of NumPy's numbers, or `STRING`."""
    shape: tuple[int | None, ...]
    """Without the batch dimension. None varies between examples: it is padded with 0, or with empty strings, to the longest of a batch."""

    @property
    def varies(self) -> bool:
        """True if examples differ in shape."""
        return None in self.shape

    @property
    def fixed(self) -> bool:
        """True if every example takes the same number of bytes."""
        return self.dtype != STRING and not self.varies

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The type of the numbers in files: little-endian, whatever the machine."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def files(self) -> tuple[str, ...]:
        """Kinds of the leaf's own files, see `columns.part_name`; none if it is part of the records."""
        if self.fixed:
            return ()
        shapes = ("shapes",) if None in self.shape[1:] else ()
        return (*(("text", "ends") if self.dtype == STRING else ("values",)), *(("starts", *shapes) if self.varies else ()))

    def __str__(self) -> str:
        """As in `x.age float32 [28]`; `?` is a dimension that varies."""
        sides = ",".join("?" if side is None else str(side) for side in self.shape)
        return f"{self.name} {self.dtype}{f' [{sides}]' if sides else ''}"


@dataclass(frozen=True)
class Spec:
    """The nest of an example, `(x,)`, `(x, y)` or `(x, y, sample_weight)`, and its arrays."""

    structure: Any
    """A list of one to three items; in it, dicts and lists down to integers, which are indices into `leaves`."""
    leaves: tuple[Leaf, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The leaves' names."""
        return tuple(leaf.name for leaf in self.leaves)

    @cached_property
    def parts(self) -> dict[str, tuple[Leaf, ...]]:
        """The leaves of `x`, `y` and `sample_weight`, those that there are."""
        return {name: tuple(self.leaves[index] for index in indices(part)) for name, part in zip(PARTS, self.structure, strict=False)}

    @cached_property
    def inputs(self) -> "Spec":
        """The spec of `x` alone, as of examples whose target is not known."""
        places = {index: place for place, index in enumerate(indices(self.structure[0]))}
        return Spec([mapped(places.__getitem__, self.structure[0])], self.parts["x"])

    def pack(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The nest of one value per leaf: a tuple `(x[, y[, sample_weight]])`, in which dicts and lists are as in `structure`."""
        return tuple(mapped(values.__getitem__, part) for part in self.structure)

    def unpack(self, nest: Sequence[Any]) -> list[Any]:
        """One value per leaf of a nest as from `pack`; DatasetError if it has another structure."""
        values: dict[int, Any] = {}
        _unpack(list(self.structure), list(nest), values)
        return [values[number] for number in range(len(self.leaves))]

    @cached_property
    def varying(self) -> list[tuple[int, int]]:
        """The leaf and the axis of each dimension that varies between examples, in order."""
        return [(number, axis) for number, leaf in enumerate(self.leaves) for axis, side in enumerate(leaf.shape) if side is None]

    def row_dtype(self) -> np.dtype[Any]:
        """The record of an example's leaves of fixed size, packed; a field's name is its leaf's number.

        Raises:
            DatasetError: it is larger than a record may be.
        """
        fixed = [(str(number), leaf) for number, leaf in enumerate(self.leaves) if leaf.fixed]
        fields = [(name, leaf.stored_dtype, tuple(side or 0 for side in leaf.shape)) for name, leaf in fixed]
        size = sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in fields)
        if size > LARGEST_RECORD:
            raise DatasetError(f"an example has {size:,} bytes in columns of fixed size; at most {LARGEST_RECORD:,}")
        return np.dtype(fields)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, from which `from_json` makes an equal spec."""
        return {"structure": self.structure, "leaves": [{**vars(leaf), "shape": list(leaf.shape)} for leaf in self.leaves]}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Spec":
        """The spec of `to_json`; `control.datasets.listing.specs` checks whether JSON is one."""
        return cls(raw["structure"], tuple(Leaf(leaf["name"], leaf["dtype"], tuple(leaf["shape"])) for leaf in raw["leaves"]))


def of_images(size: Sequence[int]) -> Spec:
    """The spec of images `(height, width, channels)` with classes."""
    return Spec([0, 1], (Leaf("image", "uint8", tuple(size)), Leaf("label", "int32", ())))


def noun(*columns: object) -> str:
    """Noun for the items of a batch: `image`, or `example` if any of the datasets has columns (its spec or table; of images None)."""
    return "image" if all(one is None for one in columns) else "example"


def indices(nest: Any) -> Iterator[int]:
    """The integers of a nest, in order."""
    if isinstance(nest, int):
        yield nest
        return
    for part in nest.values() if isinstance(nest, dict) else nest:
        yield from indices(part)


def _unpack(structure: Any, nest: Any, values: dict[int, Any]) -> None:
    if isinstance(structure, int):
        values[structure] = nest
        return
    keys = structure.keys() if isinstance(structure, dict) else range(len(structure))
    fits = isinstance(nest, dict) if isinstance(structure, dict) else isinstance(nest, list | tuple)
    if not fits or len(nest) != len(structure) or (isinstance(nest, dict) and nest.keys() != keys):
        raise DatasetError(f"{nest!r:.80} has another structure than {structure!r:.80}")
    for key in keys:
        _unpack(structure[key], nest[key], values)


def mapped(function: Callable[[Any], Any], nest: Any) -> Any:
    """A nest of dicts, lists and tuples, each of whose leaves is replaced by the function's result."""
    if isinstance(nest, dict):
        return {key: mapped(function, part) for key, part in nest.items()}
    return type(nest)(mapped(function, part) for part in nest) if isinstance(nest, list | tuple) else function(nest)
