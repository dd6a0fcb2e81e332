"""Dataclasses as plain values for JSON and for Ansible's facts, and back: what travels is typed at both ends."""

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

Typed = TypeVar("Typed")
Reader = Callable[[Any], Any]


def to_plain(value: Any) -> Any:
    """The value with dicts in place of dataclasses, lists in place of tuples and texts in place of paths, at any depth.

    A dataclass with an attribute `ALWAYS` leaves out all other fields that have their default.
    """
    if is_dataclass(value) and not isinstance(value, type):
        entries = {one: getattr(value, one.name) for one in fields(value)}
        always = getattr(value, "ALWAYS", [one.name for one in entries])
        return {one.name: to_plain(each) for one, each in entries.items() if one.name in always or each != _default(one)}
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def from_plain(kind: type[Typed], entries: Mapping[str, Any]) -> Typed:
    """A dataclass from `to_plain`; what it has no field for is ignored, as in a file of another version."""
    read = _readers(cast(Any, kind))
    return kind(**{name: read[name](value) for name, value in entries.items() if name in read})


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


@functools.cache
def _readers(kind: Any) -> dict[str, Reader]:
    """Functions that read the fields of a dataclass, by name."""
    return {name: _reader(hint) for name, hint in get_type_hints(kind).items() if name in {one.name for one in fields(kind)}}


def _reader(hint: Any) -> Reader:
    """The function that reads a value of a type: dataclasses and paths, alone, optional, in sequences and in mappings."""
    inner = get_args(hint)
    if is_dataclass(hint):
        return lambda value: from_plain(cast(type, hint), value)
    if hint is Path:
        return Path
    if isinstance(hint, types.UnionType):
        return lambda value: value
    if inner and issubclass(get_origin(hint), Mapping):
        read = _reader(inner[1])
        return lambda value: {key: read(each) for key, each in value.items()}
    if inner:
        read = _reader(inner[0])
        return lambda value: [read(each) for each in value]
    return lambda value: value
