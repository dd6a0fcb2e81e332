"""The options of a run's model: those of a registered model, or parameters of the user's own function."""

import math
from typing import Any

from control.common import user_files
from control.common.configurations import value_of
from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest
from trainer.models import MODELS, user_model
from trainer.models import options as registered
from trainer.user_code.user_function import Function


def options_of(section: dict[str, Any]) -> dict[str, Any]:
    """The model's own options, from a configuration's `model` section; ConfigError for an unknown model or option, or a wrong type."""
    name = section["name"]
    if name == user_model.NAME:
        return _of_own(section)
    if name not in MODELS:
        raise ConfigError(
            f"model.name: {name} is unknown{nearest(name, MODELS)}; it must be one of: {', '.join(sorted(MODELS))}; "
            "or give your own: -e model=FILE.py:FUNCTION"
        )
    options = registered(name)
    values = {key: value for key, value in section.items() if key != "name"}
    for key, value in values.items():
        if key not in options:
            known = ", ".join(f"model.{option}" for option in options) or "none"
            raise ConfigError(f"model.{key}: {name} has no such option{nearest(key, options)}; known: {known}")
        values[key] = value_of(options[key].annotation, value, f"model.{key}")
        if isinstance(values[key], float) and not math.isfinite(values[key]):
            raise ConfigError(f"model.{key}: {value} is not a number")
    return {key: values.get(key, option.default) for key, option in options.items()}


def section_of(section: dict[str, Any]) -> dict[str, Any]:
    """A configuration's `model` section with every option written out; that of a user's own model is unchanged."""
    options = options_of(section)
    return section if section["name"] == user_model.NAME else {"name": section["name"], **options}


def _of_own(given: dict[str, Any]) -> dict[str, Any]:
    """Options of the user's own function, checked by name without running the file.

    ConfigError: the section is incomplete, or an option is unknown.
    """
    missing = [key for key in user_model.KEYS if not isinstance(given.get(key), str)]
    if missing:
        raise ConfigError(f"model.{missing[0]}: missing; give your own model as -e model=FILE.py:FUNCTION")
    function = Function.of(given)
    arguments = user_files.parameters("model", function)
    names = user_model.parameters(function)
    known = [*(names[2:] if user_model.takes_images(given) else names), *(argument.arg for argument in arguments.kwonlyargs)]
    options = user_model.options_of(given)
    wanted = names[2:] if user_model.takes_images(given) else names
    required = [
        name
        for name in wanted[: max(0, len(names) - len(arguments.defaults) - (2 if user_model.takes_images(given) else 0))]
        if name not in options
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
