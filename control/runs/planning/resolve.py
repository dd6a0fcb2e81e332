"""The configuration of a run: from its name, the command's overrides, and the configuration with which an existing run began."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from control.common import configurations, model_options
from control.runs.planning import preset
from control.runs.planning.plan_request import DEFAULT, OperatorRequest
from control.runs.results import mlflow_log
from trainer.common.errors import ConfigError
from trainer.common.safe_text import printable
from trainer.config import schedule
from trainer.config.schema import Config
from trainer.rundir.launch_record import LaunchRecord, training

MAY_CHANGE = (
    "train.epochs",
    "train.steps",
    "train.patience",
    "train.time_limit",
    "train.batch_sizes",
    "train.environment",
    "data.loaders",
    "checkpoint.copy",
    "checkpoint.every_seconds",
    "checkpoint.snapshots",
    "recovery.max_restarts",
    "recovery.max_restarts_per_hour",
    "recovery.rejoin_wait",
    "recovery.hang",
    "recovery.standby",
    "recovery.elastic",
    "recovery.elastic_wait",
    "recovery.min_workers",
    "telemetry.mlflow",
    "report.author",
    "report.title",
)
GUARDED_BY_DIGEST = ("data.path", "data.source")
FIXED = ("global_batch", "class_counts")
"""Keys of `train` that a plan computes when a run starts."""


def resolve(asked: OperatorRequest, existing: Path | None, choice: preset.Choice | None = None) -> tuple[Config, str]:
    """The configuration from defaults, file, operator variables and `set`, and the name of its file.

    Args:
        asked: the operator's variables.
        existing: directory of an existing run.
        choice: the configuration that fits the dataset, if none was named.

    Raises:
        ConfigError: unknown keys or values, or a change that a resumed run can't take.
    """
    name = asked.config if asked.config is not None else choice.config if choice else DEFAULT
    if existing is not None and asked.config is None:
        raw, name = configurations.load(existing / "config.yml"), "config.yml"
    else:
        raw = configurations.load(configurations.find(name))
    given = (choice.overrides if choice else {}) | asked.overrides
    config = with_model_defaults(configurations.build(configurations.override(raw, given)))
    if existing is not None and LaunchRecord.read(existing):
        config = _resumed(config, existing, asked.settings)
    mlflow_log.check_uri(config.telemetry.mlflow)
    return config, name


def with_model_defaults(config: Config) -> Config:
    """The configuration with the model's defaults written out, so that a later version's defaults do not change this run.

    Raises:
        ConfigError: an unknown model or option.
    """
    return with_keys(config, {"model": model_options.section_of(config.model)})


def with_keys(config: Config, changes: dict[str, Any]) -> Config:
    """The configuration with these keys changed, by dotted name."""
    return configurations.build(configurations.override(configurations.to_dict(config), changes))


def _may_change(key: str) -> bool:
    """Return whether a resumed run may change a key; each variable in `train.environment` is its own key."""
    return any(key == allowed or key.startswith(f"{allowed}.") for allowed in MAY_CHANGE + GUARDED_BY_DIGEST)


def _as_begun(existing: Path) -> dict[str, Any]:
    """The configuration of a run, rebuilt so that keys newer than the run have their defaults."""
    return configurations.to_dict(with_model_defaults(configurations.build(configurations.load(existing / "config.yml"))))


def _resumed(config: Config, existing: Path, settings: Mapping[str, Any]) -> Config:
    old = _as_begun(existing)
    config = with_keys(config, {f"train.{key}": old["train"][key] for key in FIXED if f"train.{key}" not in settings})
    changed = [key for key in configurations.differences(old, configurations.to_dict(config)) if not _may_change(key)]
    if changed:
        raise ConfigError(
            f"run={existing.name}: this run exists with another {', '.join(changed)}. Leave out what sets "
            f"{'it' if len(changed) == 1 else 'them'} to continue it, or give a new run name. "
            f"Of a run that is continued, only {', '.join(MAY_CHANGE)} may change."
        )
    return config


def changes(existing: Path | None, asked: Config, config: Config, workers: int) -> list[str]:
    """Options typed now that differ from a launched run, as `train.epochs=90 (it has 60)`: training workers can't adopt them.

    Args:
        existing: the run's directory; None for a new run.
        asked: the configuration as typed.
        config: the same configuration with the values that follow from the inventory, which count as no change.
        workers: number of hosts that are to train.
    """
    if existing is None:
        return []
    old = _as_begun(existing)
    by_inventory = set(configurations.differences(configurations.to_dict(asked), configurations.to_dict(config)))
    new = configurations.to_dict(config)
    keys = [key for key in configurations.differences(old, new) if key not in GUARDED_BY_DIGEST and key not in by_inventory]
    before = len(training(LaunchRecord.read(existing).hosts))
    return [
        *(f"{key}={configurations.value_at(new, key)} (it has {configurations.value_at(old, key)})" for key in keys),
        *([f"workers={workers} (it has {before})"] if workers != before else []),
    ]


SHOWN_APART = {"data.path", "data.source", "data.augment", "train.weights", "train.callbacks"}
"""Keys that have lines of their own in the plan."""


def differing(name: str, asked: Config, given: Mapping[str, Any]) -> list[str]:
    """Keys of a new run that differ from its configuration file, as `train.steps=20 instead of 70`.

    Args:
        name: of the configuration.
        asked: the resolved configuration.
        given: values of `set` by dotted key; a model's other keys are its defaults.
    """
    old = configurations.to_dict(configurations.build(configurations.load(configurations.find(name))))
    new = configurations.to_dict(asked)
    keys = [key for key in configurations.differences(old, new) if key not in SHOWN_APART]
    keys = [key for key in keys if not key.startswith("model.") or key in given]
    return [printable(f"{key}={_value(new, key)} instead of {_value(old, key)}", 120) for key in keys]


def _value(plain: dict[str, Any], key: str) -> str:
    return json.dumps(configurations.value_at(plain, key))


def with_global_batch(config: Config, workers: int) -> Config:
    """Fix the global batch, so that a resumed run takes the same steps on any number of workers."""
    return with_keys(config, {"train.global_batch": schedule.global_batch(config, workers)})
