"""The registry of models. A model takes one file, one decorator and one YAML file."""

import dataclasses
import math
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainer.config import nearest, value_of
from trainer.errors import ConfigError
from trainer.models import own

if TYPE_CHECKING:
    import keras

Size = tuple[int, ...]
Builder = Callable[[Any, Size, int], "keras.Model"]


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """A model without options of its own."""


MODELS: dict[str, tuple[Builder, type]] = {}
"""The registered models: how each is built, and its options."""


def model(name: str, options: type = NoOptions) -> Callable[[Builder], Builder]:
    """Register `build(options, input_size, classes) -> keras.Model` (which returns logits) under a name."""

    def register(build: Builder) -> Builder:
        MODELS[name] = build, options
        return build

    return register


def options_of(section: dict[str, Any]) -> Any:
    """The model's own options, from a configuration's `model` section; ConfigError for an unknown model or option, or a wrong type."""
    name = section["name"]
    if name == own.NAME:
        return own.options_of(section)
    if name not in MODELS:
        raise ConfigError(
            f"model.name: {name} is unknown{nearest(name, MODELS)}; it must be one of: {', '.join(sorted(MODELS))}; "
            "or give your own: -e model=FILE.py:FUNCTION"
        )
    kind = MODELS[name][1]
    hints = typing.get_type_hints(kind)
    values = {key: value for key, value in section.items() if key != "name"}
    for key, value in values.items():
        if key not in hints:
            known = ", ".join(f"model.{hint}" for hint in hints) or "none"
            raise ConfigError(f"model.{key}: {name} has no such option{nearest(key, hints)}; known: {known}")
        values[key] = value_of(hints[key], value, f"model.{key}")
        if isinstance(values[key], float) and not math.isfinite(values[key]):
            raise ConfigError(f"model.{key}: {value} is not a number")
    return kind(**values)


def section_of(section: dict[str, Any]) -> dict[str, Any]:
    """A configuration's `model` section with every option written out; that of a user's own model is unchanged."""
    options = options_of(section)
    return section if section["name"] == own.NAME else {"name": section["name"], **dataclasses.asdict(options)}


def build(section: dict[str, Any], size: Size, classes: int) -> "keras.Model":
    """Build the model that a configuration names, for images `[*size]` and `classes` classes."""
    if section["name"] == own.NAME:
        return own.build(section, size, classes)
    options = options_of(section)
    return MODELS[section["name"]][0](options, size, classes)
