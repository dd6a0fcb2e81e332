"""The registry of models. A model takes one file, one decorator and one YAML file."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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


def build(section: dict[str, Any], size: Size, classes: int) -> "keras.Model":
    """Build the model that a configuration names, for images `[*size]` and `classes` classes."""
    if section["name"] == own.NAME:
        return own.build(section, size, classes)
    builder, kind = MODELS[section["name"]]
    return builder(kind(**{key: value for key, value in section.items() if key != "name"}), size, classes)
