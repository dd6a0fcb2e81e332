"""Explanations of errors in the user's own model: a step that fails, a snapshot that could not be opened again."""

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainer.common.errors import ConfigError
from trainer.models.user_model import NAME
from trainer.user_code import user_function
from trainer.user_code.user_function import Function

if TYPE_CHECKING:
    import keras

LONGEST = 12
"""Most lines shown of an error of Keras."""

COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""Keras' escape sequences around a message for a terminal."""

HINTS = {
    "None values": "A loss or a metric returns nothing, or the data have no y. Fix: end your own with return, and give (x, y)",
    "`target` and `output`": "Fix: an output of y's shape; for a y that is the number of a class, loss='sparse_categorical_crossentropy'",
    "could not convert string to float": "An input is a column of strings. In a CSV file, one value that is no number makes a column "
    "strings. Fix: leave a missing value empty, or write NA; for strings that are meant, keras.layers.StringLookup",
}
"""Remedies for errors of Keras, by a part of the text."""


@contextlib.contextmanager
def explaining(doing: str, given: dict[str, Any]) -> Iterator[None]:
    """Turn an error of a compiled model into a ConfigError that names the attempted action and the line in the user's file."""
    function = Function.of(given)
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        lines = COLOR.sub("", str(error)).strip().splitlines()[:LONGEST]
        hint = "".join(f"\n{hint}" for part, hint in HINTS.items() if part in str(error))
        where = user_function.line(error, function)
        raise ConfigError(
            f"model={function.called}{where}: a step of {doing} fails: {type(error).__name__}: {chr(10).join(lines)}{hint}"
        ) from error


def check_reopens(given: dict[str, Any], model: "keras.Model") -> None:
    """Refuse a model that could be trained and saved but not reopened (ConfigError with the reason); built-in models always can."""
    if given["name"] != NAME:
        return
    import keras

    function = Function.of(given)
    try:
        with user_function.explaining_errors("model", function):
            keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    except ConfigError as error:
        unknown = re.search(r"Could not locate (?:class|function) '[^']+'", str(error))
        why = f"model={function.called}: {unknown[0]}" if unknown else str(error).splitlines()[0]
        raise ConfigError(
            f"{why}\nIts snapshots could not be opened again: decorate each class of your own with "
            "@keras.saving.register_keras_serializable() (and get_config, where it takes arguments), and use a layer instead of Lambda"
        ) from None
