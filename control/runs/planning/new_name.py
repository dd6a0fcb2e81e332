"""The name of a run, given or made."""

import datetime
import re
from pathlib import Path

from control.runs.planning.plan_request import Request
from control.runs.results.run_names import check_run_name

DEFAULT = "lecture_cnn"
"""Configuration if the command names none."""


def run_name(request: Request) -> tuple[str, Path | None]:
    """The run's name, and its directory if it exists.

    Raises:
        ConfigError: the name could leave its folder or reach a shell.
    """
    asked = request.options.get("run")
    name = str(asked) if asked is not None else free_name(request)
    check_run_name(name)
    folder = request.runs / name
    # A name made in this second may be another command's run by now.
    return name, folder if asked is not None and (folder / "config.yml").is_file() else None


def free_name(request: Request, default: str = DEFAULT) -> str:
    """A name from the model or configuration, and the time."""
    options = request.options
    named = options.get("script", options.get("model", options.get("config", default)))
    file = Path(str(named).split(".py:")[0])
    # A run's own configuration is `runs/NAME/config.yml`.
    config = file.parent.name if file.name == "config.yml" else file.stem
    stem = re.sub(r"[^a-z0-9]+", "-", config.lower()).strip("-")[:32] or "run"
    stamp = datetime.datetime.now(tz=datetime.UTC).strftime("%m%d-%H%M%S")
    return f"{stem}-{stamp}"
