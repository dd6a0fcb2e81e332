"""A model from the user's own file. The file's text is part of the configuration, so every host builds the same model."""

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainer import own
from trainer.config import nearest, scientific
from trainer.errors import ConfigError
from trainer.own import Function

if TYPE_CHECKING:
    import keras

NAME = "own"
KEYS = ("name", "file", "function", "source")
LONGEST = 12
"""Lines of an error of Keras."""
COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""What Keras puts around a message for a terminal."""
HINTS = {
    "None values": "A loss or a metric returns nothing, or the data have no y. Fix: end your own with return, and give (x, y)",
    "`target` and `output`": "Fix: an output of y's shape; for a y that is the number of a class, loss='sparse_categorical_crossentropy'",
    "could not convert string to float": "An input is a column of strings. In a CSV file, one value that is no number makes a column "
    "strings. Fix: leave a missing value empty, or write NA; for strings that are meant, keras.layers.StringLookup",
}
"""What to do about an error of Keras, by a part of its text."""
GIVEN = ("size", "classes")
"""The first parameters of a function that builds a classifier of images; all others are options of the model."""


def section(given: str) -> dict[str, str]:
    """The configuration section `model` for `FILE.py:FUNCTION`; ConfigError if there is no such function."""
    return {"name": NAME, **own.find("model", given).entry}


def options_of(given: dict[str, Any]) -> dict[str, Any]:
    """The model's own options, checked by name without running the file.

    ConfigError: the section is incomplete, or an option is unknown.
    """
    missing = [key for key in KEYS if not isinstance(given.get(key), str)]
    if missing:
        raise ConfigError(f"model.{missing[0]}: missing; give your own model as -e model=FILE.py:FUNCTION")
    function = _function(given)
    arguments = own.parameters("model", function)
    names = _parameters(function)
    known = [*(names[2:] if takes_images(given) else names), *(argument.arg for argument in arguments.kwonlyargs)]
    options = {key: scientific(value) for key, value in given.items() if key not in KEYS and not key.endswith(".py")}
    wanted = names[2:] if takes_images(given) else names
    required = [
        name for name in wanted[: max(0, len(names) - len(arguments.defaults) - (2 if takes_images(given) else 0))] if name not in options
    ]
    if required:
        raise ConfigError(
            f"model={function.called}: its parameter {required[0]} has no value; give it with -e set=model.{required[0]}=VALUE. "
            "A classifier of images begins its parameters with (size, classes)"
        )
    for key in options:
        if key not in known and arguments.kwarg is None:
            listed = ", ".join(f"model.{name}" for name in known) or "none"
            raise ConfigError(f"model.{key}: {function.called} has no such parameter{nearest(key, known)}; known: {listed}")
    return options


def takes_images(given: dict[str, Any]) -> bool:
    """Whether the function builds a model for images of a size and for classes: its first parameters are `GIVEN`."""
    return tuple(_parameters(_function(given))[:2]) == GIVEN


def _parameters(function: Function) -> list[str]:
    arguments = own.parameters("model", function)
    return [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]


def build(given: dict[str, Any], size: tuple[int, ...], classes: int) -> "keras.Model":
    """Build the model; ConfigError if its code raised an error, or it returned neither a compiled model nor one for these images."""
    function, options = _function(given), options_of(given)
    builder = own.load("model", function)
    with own.explaining_errors("model", function):
        model = builder(size, classes, **options) if takes_images(given) else builder(**options)
    import keras

    called = f"model={function.called}"
    if not isinstance(model, keras.Model):
        raise ConfigError(f"{called}: it returns {type(model).__name__}; it must return a keras.Model")
    if model.compiled:
        return model
    if not takes_images(given):
        raise ConfigError(
            f"{called}: its model is not compiled, so its loss and optimizer are unknown; call model.compile(optimizer=..., loss=..., "
            "metrics=[...]) before returning it. A classifier of images may leave that out: begin its parameters with (size, classes)"
        )
    return _checked(model, function, size, classes)


@contextlib.contextmanager
def explaining(doing: str, given: dict[str, Any]) -> Iterator[None]:
    """Turn an error of a compiled model into a ConfigError that says what was tried, and where in the user's file it arose."""
    function = _function(given)
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        lines = COLOR.sub("", str(error)).strip().splitlines()[:LONGEST]
        hint = "".join(f"\n{hint}" for part, hint in HINTS.items() if part in str(error))
        where = own.line(error, function)
        raise ConfigError(
            f"model={function.called}{where}: a step of {doing} fails: {type(error).__name__}: {chr(10).join(lines)}{hint}"
        ) from error


def prepare(given: dict[str, Any]) -> None:
    """Register the classes that a snapshot of the model may name with Keras."""
    if given["name"] == NAME:
        own.load("model", _function(given))


def _function(given: dict[str, Any]) -> Function:
    return Function.of(given)


def _checked(model: Any, function: Function, size: tuple[int, ...], classes: int) -> "keras.Model":
    import keras

    from trainer import additive

    called = f"model={function.called}"
    # A subclassed model that builds itself is built, but has neither shape.
    if not model.built or not hasattr(model, "input_shape") or not hasattr(model, "output_shape"):
        raise ConfigError(f"{called}: the model has no input shape; begin it with keras.Input(size)")
    if model.input_shape != (None, *size):
        raise ConfigError(
            f"{called}: its input is {model.input_shape}; it must be (None, {', '.join(map(str, size))}), as set by data.image_size"
        )
    if model.output_shape != (None, classes):
        raise ConfigError(f"{called}: its output is {model.output_shape}; it must be (None, {classes}), one number per class")
    if names := additive.overridden(model):
        raise ConfigError(f"{called}: it has a {names[0]} of its own, which would not be used here; leave it out")
    last = model.layers[-1]
    if isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is keras.activations.softmax:
        raise ConfigError(f"{called}: it ends with softmax; leave that out: the loss takes logits")
    return model


def check_reopens(given: dict[str, Any], model: "keras.Model") -> None:
    """Refuse a model that could be trained and saved but not reopened (ConfigError says why); the built-in models can be."""
    if given["name"] != NAME:
        return
    import keras

    function = _function(given)
    try:
        with own.explaining_errors("model", function):
            keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    except ConfigError as error:
        unknown = re.search(r"Could not locate (?:class|function) '[^']+'", str(error))
        why = f"model={function.called}: {unknown[0]}" if unknown else str(error).splitlines()[0]
        raise ConfigError(
            f"{why}\nIts snapshots could not be opened again: decorate each class of your own with "
            "@keras.saving.register_keras_serializable() (and get_config, where it takes arguments), and use a layer instead of Lambda"
        ) from None
