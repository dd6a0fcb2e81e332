"""The registry of models. A model takes one file, one decorator and one YAML file."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainer.models import user_model

if TYPE_CHECKING:
    import keras

Size = tuple[int, ...]
Builder = Callable[..., "keras.Model"]
MODELS: dict[str, tuple[Builder, dict[str, str]]] = {}
"""The registered models: how each is built, and what its options mean."""


def model(**meanings: str) -> Callable[[Builder], Builder]:
    """Register `build(size, classes, **options) -> keras.Model` (which returns logits) under its name, with what each option means."""

    def register(build: Builder) -> Builder:
        MODELS[build.__name__] = build, meanings
        return build

    return register


def options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a registered model, with their types and defaults."""
    build, meanings = MODELS[name]
    return {option: inspect.signature(build).parameters[option] for option in meanings}


def build(section: dict[str, Any], size: Size, classes: int) -> "keras.Model":
    """Build the model that a configuration names, for images `[*size]` and `classes` classes."""
    if section["name"] == user_model.NAME:
        return user_model.build(section, size, classes)
    return MODELS[section["name"]][0](size, classes, **{key: value for key, value in section.items() if key != "name"})
