"""A model from the user's own file. The file's text is part of the configuration, so every host builds the same model."""

import ast
from typing import TYPE_CHECKING, Any

from trainer.common.errors import ConfigError
from trainer.config.loading import scientific
from trainer.user_code import user_function
from trainer.user_code.user_function import Function

if TYPE_CHECKING:
    import keras

NAME = "own"
KEYS = ("name", "file", "function", "source")
GIVEN = ("size", "classes")
"""The first parameters of a function that builds a classifier of images; all others are options of the model."""


def options_of(given: dict[str, Any]) -> dict[str, Any]:
    """The model's own options."""
    return {key: scientific(value) for key, value in given.items() if key not in KEYS and not key.endswith(".py")}


def takes_images(given: dict[str, Any]) -> bool:
    """Return whether the function builds a model for images of a size and for classes: its first parameters are `GIVEN`."""
    return tuple(parameters(Function.of(given))[:2]) == GIVEN


def parameters(function: Function) -> list[str]:
    """Names of the function's parameters that may be given by position."""
    functions = {node.name: node.args for node in ast.parse(function.source).body if isinstance(node, ast.FunctionDef)}
    arguments = functions[function.name]
    return [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]


def build(given: dict[str, Any], size: tuple[int, ...], classes: int) -> "keras.Model":
    """Build the model; ConfigError if its code raised an error, or it returned neither a compiled model nor one for these images."""
    function, options = Function.of(given), options_of(given)
    builder = user_function.load("model", function)
    with user_function.explaining_errors("model", function):
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


def _checked(model: Any, function: Function, size: tuple[int, ...], classes: int) -> "keras.Model":
    import keras

    from trainer.models.compiled_model import CompiledModel

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
    if names := CompiledModel(model).overridden():
        raise ConfigError(f"{called}: it has a {names[0]} of its own, which would not be used here; leave it out")
    last = model.layers[-1]
    if isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is keras.activations.softmax:
        raise ConfigError(f"{called}: it ends with softmax; leave that out: the loss takes logits")
    return model
