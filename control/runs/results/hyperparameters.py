"""A run's configuration as one table of names and values, for tools that compare runs."""

import json
from collections.abc import Iterator
from typing import Any

from control.runs.results import metric_text


def hyperparameters(config: dict[str, Any], workers: int, compiled: dict[str, Any] | None = None) -> dict[str, bool | float | str]:
    """Values of config.yml by dotted name, and the number of workers; lists as JSON; without nulls and texts of the user's files.

    A `compiled` model ignores the optimizer of the configuration, so its own optimizer is shown.
    """
    settings = {name: value for name, value in _flat(config) if value is not None and "\n" not in str(value)}
    settings |= {"model.name": metric_text.model_name(config["model"])} if "model" in config else {}
    if compiled:
        settings = {name: value for name, value in settings.items() if name.partition(".")[0] not in ("optimizer", "schedule")}
        own = {"optimizer.name": compiled["optimizer"], "optimizer.learning_rate": compiled.get("learning_rate"), "loss": compiled["loss"]}
        settings |= {name: value for name, value in own.items() if value is not None}
    values = {name: json.dumps(value) if isinstance(value, list) else value for name, value in settings.items()}
    return {**values, "workers": workers}


def _flat(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
