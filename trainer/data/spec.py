"""What one example of a dataset is: the nest that `fit` takes, and the type and shape of each of its arrays.

A spec comes from a published manifest, so `from_json` refuses whatever is not exactly a spec.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trainer.errors import DatasetError

STRING = "string"
NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
DTYPES = (*NUMBERS, STRING)
PARTS = ("x", "y", "sample_weight")
DEEPEST = 8
"""Of dicts and lists within dicts and lists."""
MOST_LEAVES = 4096
MOST_DIMENSIONS = 8
LONGEST_NAME = 256
MOST_ELEMENTS = 2**31
"""Elements of one array of one example, dimensions that vary left out."""


@dataclass(frozen=True)
class Leaf:
    """One array of an example."""

    name: str
    """Its place in the nest: `x`, `x.age`, `x[1]`, `y`."""
    dtype: str
    """One of `DTYPES`."""
    shape: tuple[int | None, ...]
    """Without the batch dimension. None varies between examples: it is padded with 0, or with empty strings, to the longest of a batch."""

    @property
    def varies(self) -> bool:
        """Whether examples differ in shape."""
        return None in self.shape

    @property
    def fixed(self) -> bool:
        """Whether every example takes the same number of bytes."""
        return self.dtype != STRING and not self.varies

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
        return {name: tuple(self.leaves[index] for index in _indices(part)) for name, part in zip(PARTS, self.structure, strict=False)}

    @cached_property
    def inputs(self) -> "Spec":
        """The spec of `x` alone, as of examples whose target is not known."""
        places = {index: place for place, index in enumerate(_indices(self.structure[0]))}
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

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, from which `from_json` makes an equal spec."""
        leaves = [{"name": leaf.name, "dtype": leaf.dtype, "shape": list(leaf.shape)} for leaf in self.leaves]
        return {"structure": self.structure, "leaves": leaves}

    @classmethod
    def from_json(cls, raw: Any) -> "Spec":
        """The spec of untrusted JSON; DatasetError names the first broken rule."""
        if not isinstance(raw, dict) or set(raw) != {"structure", "leaves"} or not isinstance(raw["leaves"], list):
            raise _refused("it needs structure and leaves")
        structure = raw["structure"]
        if not isinstance(structure, list) or not 1 <= len(structure) <= len(PARTS):
            raise _refused("structure must be a list of one to three items")
        if not 1 <= len(raw["leaves"]) <= MOST_LEAVES:
            raise _refused(f"there must be 1 to {MOST_LEAVES} leaves")
        _check_depth(structure, DEEPEST + 1)
        leaves = tuple(map(_leaf, raw["leaves"]))
        if sorted(_indices(structure)) != list(range(len(leaves))):
            raise _refused(f"structure must name each of the {len(leaves)} leaves once")
        return cls(structure, leaves)


def of_images(size: Sequence[int]) -> Spec:
    """The spec of images `(height, width, channels)` with classes."""
    return Spec([0, 1], (Leaf("image", "uint8", tuple(size)), Leaf("label", "int32", ())))


def noun(*columns: object) -> str:
    """What a step takes and a rate counts: `image`, or `example` if any of the datasets has columns (its spec or table; of images None)."""
    return "image" if all(one is None for one in columns) else "example"


def _leaf(raw: Any) -> Leaf:
    if not isinstance(raw, dict) or set(raw) != {"name", "dtype", "shape"}:
        raise _refused("a leaf needs name, dtype and shape")
    name, dtype, shape = raw["name"], raw["dtype"], raw["shape"]
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
        raise _refused(f"a leaf's name must be text of 1 to {LONGEST_NAME} characters")
    if dtype not in DTYPES:
        raise _refused(f"dtype {dtype!r:.40}; it must be one of: {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS or not all(map(_is_side, shape)):
        raise _refused(f"a shape has up to {MOST_DIMENSIONS} dimensions, each a whole number or null")
    elements = 1
    for side in shape:
        elements *= 1 if side is None else side
    if elements > MOST_ELEMENTS:
        raise _refused(f"an example's array has {elements:,} elements; at most {MOST_ELEMENTS:,}")
    return Leaf(name, dtype, tuple(shape))


def _is_side(side: Any) -> bool:
    return side is None or (type(side) is int and 0 <= side <= MOST_ELEMENTS)


def _check_depth(nest: Any, left: int) -> None:
    """Refuse what is not a nest, before anything recurses into it without limit."""
    if type(nest) is int:
        return
    if left == 0:
        raise _refused(f"structure is nested more than {DEEPEST} levels deep")
    if not isinstance(nest, dict | list) or (isinstance(nest, dict) and not all(isinstance(key, str) for key in nest)):
        raise _refused("structure must be dicts and lists of indices")
    for part in nest.values() if isinstance(nest, dict) else nest:
        _check_depth(part, left - 1)


def _indices(nest: Any) -> Iterator[int]:
    """The integers of a nest, in order."""
    if isinstance(nest, int):
        yield nest
        return
    for part in nest.values() if isinstance(nest, dict) else nest:
        yield from _indices(part)


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


def stored_dtype(leaf: Leaf) -> np.dtype[Any]:
    """The type of a leaf's numbers in files: little-endian, whatever the machine."""
    return np.dtype(leaf.dtype).newbyteorder("<")


def _refused(why: str) -> DatasetError:
    return DatasetError(f"the dataset's spec: {why}. Fix: remove the published dataset, and publish it again")
