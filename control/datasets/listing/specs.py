"""Checks of the JSON of a spec of examples: its form and size. Hosts need none: a manifest's digest comes from here."""

from typing import Any

from trainer.common.errors import DatasetError
from trainer.data.manifest import SPLITS, Table
from trainer.data.spec import PARTS, STRING, Leaf, Spec, indices

MOST_EXAMPLES = 2**40
NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
DTYPES = (*NUMBERS, STRING)
DEEPEST = 8
"""Maximum depth of nested dicts and lists."""
MOST_LEAVES = 4096
MOST_DIMENSIONS = 8
LONGEST_NAME = 256
MOST_ELEMENTS = 2**31
"""Elements of one array of one example, dimensions that vary left out."""


def checked(raw: Any) -> Spec:
    """The spec of JSON; DatasetError names the first broken rule."""
    if not isinstance(raw, dict) or set(raw) != {"structure", "leaves"} or not isinstance(raw["leaves"], list):
        raise _refused("it needs structure and leaves")
    structure = raw["structure"]
    if not isinstance(structure, list) or not 1 <= len(structure) <= len(PARTS):
        raise _refused("structure must be a list of one to three items")
    if not 1 <= len(raw["leaves"]) <= MOST_LEAVES:
        raise _refused(f"there must be 1 to {MOST_LEAVES} leaves")
    _check_depth(structure, DEEPEST + 1)
    leaves = tuple(map(_leaf, raw["leaves"]))
    if sorted(indices(structure)) != list(range(len(leaves))):
        raise _refused(f"structure must name each of the {len(leaves)} leaves once")
    return Spec(structure, leaves)


def checked_table(raw: Any) -> Table:
    """The table of JSON; DatasetError names the first broken rule."""
    if not isinstance(raw, dict) or set(raw) != {"spec", *SPLITS}:
        raise DatasetError("the manifest's table needs spec, train and test")
    for split in SPLITS:
        if type(raw[split]) is not int or not 0 <= raw[split] <= MOST_EXAMPLES:
            raise DatasetError(f"the manifest's table: {split} must be a whole number from 0 to {MOST_EXAMPLES:,}")
    return Table(checked(raw["spec"]), raw["train"], raw["test"])


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


def _refused(why: str) -> DatasetError:
    return DatasetError(f"the dataset's spec: {why}. Fix: remove the published dataset, and publish it again")
