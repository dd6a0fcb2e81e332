"""What one example of a dataset is made of: the nest that Keras' `fit` takes, and the type and shape of each of its arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Leaf:
    """One array of an example."""

    name: str
    dtype: str
    """A NumPy type, or `string`."""
    shape: tuple[int | None, ...]
    """Without the batch dimension; None: varies between examples, which are padded to the longest of a batch."""


@dataclass(frozen=True)
class Spec:
    """The structure of an example and its leaves."""

    structure: Any
    """`[x]`, `[x, y]` or `[x, y, sample_weight]`, in which lists and dicts nest, and each leaf is an index into `leaves`."""
    leaves: tuple[Leaf, ...]

    def pack(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Values, in order of the leaves, in the structure; the outermost list becomes a tuple."""
        return tuple(_packed(one, values) for one in self.structure)


def _packed(structure: Any, values: Sequence[Any]) -> Any:
    if isinstance(structure, dict):
        return {name: _packed(one, values) for name, one in structure.items()}
    if isinstance(structure, list):
        return [_packed(one, values) for one in structure]
    return values[structure]


def mapped(function: Callable[[Any], Any], nest: Any) -> Any:
    """The nest with each of its arrays replaced by the function's result."""
    if isinstance(nest, dict):
        return {name: mapped(function, one) for name, one in nest.items()}
    if isinstance(nest, (tuple, list)):
        return type(nest)(mapped(function, one) for one in nest)
    return function(nest)


def of_images(size: Sequence[int]) -> Spec:
    """Pictures `[height, width, channels]` 0..255, each with the number of its class."""
    return Spec([0, 1], (Leaf("image", "uint8", tuple(size)), Leaf("label", "int32", ())))
