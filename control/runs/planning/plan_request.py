"""A user's request for a plan."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.common import configurations, user_files
from control.common.operator_variables import boolean, integer
from control.datasets.listing.registry import detect
from control.datasets.sources import python_function
from trainer.checkpoint import starting_weights
from trainer.common.errors import ConfigError
from trainer.common.files import sha256_file

NUMBERS = {"epochs": ("train.epochs", 1), "time_limit": ("train.time_limit", 0)}
"""Keys that have a variable of their own, and the least value of that; 0 sets none."""
QUICK = {"train.epochs": 1, "train.steps": 10, "train.steps_per_epoch": 10, "data.limit_train": 2000}
"""Ten steps in total, whatever epochs a configuration has."""
SELFTEST = {
    "train.epochs": 1,
    "train.steps": None,
    "train.steps_per_epoch": 2,
    "train.steps_per_call": 1,
    "telemetry.profile_every": 0,
}


@dataclass(frozen=True)
class Request:
    """A user's request to `train.yml`."""

    options: dict[str, Any]
    """Operator variables as typed (strings)."""
    hosts: list[dict[str, Any]]
    """Workers of the inventory, in order: name, address, port."""
    default_workers: int
    runs: Path
    packs: Path
    parameter_cache: Path
    write: bool
    """False with `--check`: nothing is written except what was found of a dataset's images: their index, and which can't be read."""
    spares: Sequence[dict[str, Any]] = ()
    """Workers of the inventory that train only in the place of another."""
    servers: Sequence[str] = ()
    """Names of those that keep the weights of an asynchronous run."""
    apart: Sequence[dict[str, Any]] = ()
    """Workers of the inventory that only do that, or only evaluate, with their `role`."""

    @classmethod
    def parsed(cls, request: dict[str, Any]) -> "Request":
        """From JSON, in which paths are text."""
        return cls(**request | {key: Path(request[key]) for key in ("runs", "packs", "parameter_cache")})

    @functools.cached_property
    def overrides(self) -> dict[str, Any]:
        """The configuration keys that the command sets; see `overrides`."""
        return overrides(self.options)


def overrides(options: dict[str, Any]) -> dict[str, Any]:
    """Operator variables as dotted keys; `set` wins over shorthands."""
    result: dict[str, Any] = {}
    if "model" in options:
        result["model"] = user_files.model_section(str(options["model"]))
    if "weights" in options:
        result["train.weights"] = _weights(str(options["weights"]))
    if "callbacks" in options:
        result["train.callbacks"] = user_files.find("callbacks", str(options["callbacks"])).entry
    if boolean("quick", options.get("quick", False)):
        if "epochs" in options:
            raise ConfigError(f"quick=true, epochs={options['epochs']}: quick is ten steps in all; leave one of them out")
        result |= QUICK
    if "dataset" in options:
        detected = detect(str(options["dataset"]))
        result |= {"data.source": detected["source"], "data.path": detected["path"]}
        if detected["source"] == "own":
            result["data.augment"] = python_function.augmentation(user_files.find("dataset", str(detected["path"])))[0]
    given = {name: integer(name, options[name], least) for name, (_, least) in NUMBERS.items() if name in options}
    result |= {NUMBERS[name][0]: number or None for name, number in given.items()}
    if "allow_bad_images" in options:
        result["data.allow_bad_images"] = boolean("allow_bad_images", options["allow_bad_images"])
    result |= configurations.parse_set(str(options.get("set", "")))
    # A trial stays short, whatever is set for the training that it is a trial of.
    return result | SELFTEST if options.get("selftest") else result


def _weights(given: str) -> dict[str, str]:
    """The configuration key `train.weights` for a file."""
    path = Path(given).expanduser()
    if not starting_weights.suffix(path.name):
        raise ConfigError(
            f"weights={given}: a file of weights ends with {' or '.join(starting_weights.SUFFIXES)}, as a snapshot in checkpoints/ does"
        )
    if not path.is_file():
        raise ConfigError(f"weights={given}: no such file: {path.absolute()}")
    return {"file": path.name, "sha256": sha256_file(path)}
