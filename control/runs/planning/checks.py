"""Refusals and warnings of a plan."""

from pathlib import Path
from typing import Any

from control.common import configurations, user_files
from control.datasets.listing.registry import Listing
from control.datasets.sources import python_function
from trainer.common.errors import ConfigError
from trainer.common.safe_text import printable
from trainer.config import schedule
from trainer.config import schema as configs
from trainer.config.schema import Config
from trainer.data import class_weight
from trainer.data.spec import noun
from trainer.models import user_model as own_model
from trainer.rundir import best_epoch
from trainer.rundir.launch_record import LaunchRecord


def warnings(asked: Config, sizes: schedule.Counts, given: dict[str, Any], listing: Listing) -> list[str]:
    """Warnings for the user before a new run."""
    batch, splits = _batch_warnings(asked, sizes, given), _split_warnings(given, listing)
    return [*batch, *splits, *listing.warnings, *_augment_warnings(asked.data)]


def _split_warnings(given: dict[str, Any], listing: Listing) -> list[str]:
    """Warnings about held-out shares that have no effect, because the dataset has its own such examples."""
    own = {"validation": listing.held_out is not None, "test": not listing.draws_test}
    examples = f"{noun(listing.table)}s"
    return [
        f"data.{split}_split={given[key]} has no effect: {listing.name} has {split} {examples} of its own"
        for split, has in own.items()
        if has and (key := f"data.{split}_split") in given
    ]


def _batch_warnings(asked: Config, sizes: schedule.Counts, given: dict[str, Any]) -> list[str]:
    """Warnings about the batch size: another key overrides it, or there are fewer images."""
    train, warnings = asked.train, []
    if "train.batch_size" in given and train.global_batch not in (None, train.batch_size * sizes.workers):
        warnings.append(
            f"train.batch_size={train.batch_size} has no effect: train.global_batch={train.global_batch} decides. "
            f"Fix: -e set=train.batch_size={train.batch_size},train.global_batch=null"
        )
    if sizes.global_batch > sizes.train_images:
        key, by = ("batch_size", sizes.workers) if train.global_batch is None else ("global_batch", 1)
        fits = max(1 if by > 1 else sizes.workers, sizes.train_images // by // 4)
        warnings.append(
            f"the global batch of {sizes.global_batch} images on {sizes.workers} workers exceeds the {sizes.train_images} training "
            f"images: every step takes all of them. Fix: use a smaller one, as in -e set=train.{key}={fits}"
        )
    return warnings


def _augment_warnings(data: configs.Data) -> list[str]:
    """Warning about a function `augment` that is not applied, although the user may expect it."""
    if data.source != "own" or data.augment is not None:
        return []
    warning = python_function.augmentation(user_files.find("dataset", str(data.path)))[1]
    return [warning] if warning else []


def check_model(config: Config, listing: Listing) -> None:
    """Refuse a registered model, which takes images, on columns; refuse settings for images on columns, and the reverse."""
    if config.data.bucket > 1 and not (listing.table and listing.table.spec.varying):
        raise ConfigError(
            f"data.bucket={config.data.bucket}: {listing.name} has no column that varies in length, so there is no padding to save. "
            "Fix: leave it out"
        )
    if listing.table is not None and config.augment != configs.Augment():
        key = configurations.differences(configurations.to_dict(configs.Config())["augment"], configurations.to_dict(config)["augment"])[0]
        raise ConfigError(
            f"augment.{key}: it changes images with classes, and {listing.name} has columns. Fix: a function augment(x, y, seed) in the "
            "file of -e dataset=FILE.py:FUNCTION"
        )
    if listing.table is not None and config.train.class_weight is not None:
        class_weight.label_of(listing.table.spec)
    if listing.table is not None and config.model["name"] != own_model.NAME:
        inputs = ", ".join(map(str, listing.table.spec.parts["x"][:5]))
        raise ConfigError(
            f"model {config.model['name']} takes images with classes, and {listing.name} has columns ({printable(inputs, 200)}). "
            "Fix: your own model, -e model=FILE.py:FUNCTION"
        )


def check_compiled(compiled: dict[str, Any] | None, evaluates: bool, given: dict[str, Any], config: Config) -> None:
    """Refuse settings that a model compiled by its function would ignore or could not follow.

    Args:
        compiled: optimizer, loss and metrics of the model if its function compiled it, else None.
        evaluates: whether the command has `evaluate=true`.
        given: the configuration keys that the command sets.
        config: the resolved configuration.

    Raises:
        ConfigError: the setting, and where it belongs.
    """
    if compiled and not compiled["validates"] and evaluates:
        raise ConfigError(
            "evaluate=true: the model has no loss, nor a test_step of its own, so there is nothing to evaluate. Fix: leave it out, "
            "or give the model a test_step"
        )
    for key in ("train.label_smoothing", "augment.mixup") if compiled else ():
        if value := configurations.value_at(configurations.to_dict(config), key):
            raise ConfigError(
                f"{key}={value}: the model is compiled with a loss of its own ({(compiled or {})['loss']}), which may not take labels that "
                "are probabilities. Fix: leave it out, and give the loss label_smoothing=, or mix examples in the model"
            )
    if compiled and config.augment != configs.Augment() and compiled["own"]:
        raise ConfigError(
            f"augment: the model has a {compiled['own'][0]} of its own, which takes the images as they are, so this would change nothing. "
            "Fix: augment in the model, or by a function augment(x, y, seed) in the file of -e dataset=FILE.py:FUNCTION"
        )
    if config.reduction.name == "powersgd" and compiled and compiled["scales_loss"]:
        raise ConfigError(
            "reduction.name=powersgd: the model's optimizer scales the loss (float16), by a factor that changes, and what PowerSGD keeps "
            "of one step does not fit the next. Fix: leave it out, or take mixed_bfloat16, which needs no scaling"
        )
    for key in given if compiled else ():
        if key.partition(".")[0] in ("optimizer", "schedule"):
            raise ConfigError(
                f"{key}={given[key]}: the model is compiled with an optimizer of its own ({(compiled or {})['optimizer']}), so this would "
                "change nothing. Fix: leave it out, or make it an option of the function: def build(rate=0.001), -e set=model.rate=0.01"
            )


def check_uncompiled(compiled: dict[str, Any] | None, config: Config) -> None:
    """Refuse settings that need a compiled model.

    Raises:
        ConfigError: the setting, and the fix.
    """
    if config.train.optimizer_state and not (compiled and config.train.weights):
        raise ConfigError(
            "train.optimizer_state=true: it goes on with what a compiled model's optimizer left in a file, and "
            f"{'there is none. Fix: -e weights=FILE' if compiled else 'this model is not compiled. Fix: leave it out'}"
        )
    if config.train.callbacks and not compiled:
        raise ConfigError(
            "callbacks: they act on a compiled model's optimizer; this model is not compiled. Fix: call model.compile(...), or, to end the "
            "training early, -e set=train.patience=3"
        )


def check_monitor(compiled: dict[str, Any] | None, asked: str | None) -> None:
    """Refuse a `train.monitor` that the model does not compute: the first epoch would always remain the best.

    The values that the model's own step returns are only known once it has run; a worker then makes the same check.
    """
    if asked is None or (compiled and compiled["own"]):
        return
    computed = list(compiled["metrics"]) if compiled else ["loss", "accuracy"]
    columns = [*computed, *(f"val_{name}" for name in computed)]
    if best_epoch.monitor([], asked).metric not in columns:
        raise ConfigError(f"train.monitor={asked}: this model has no such metric; it has: {', '.join(columns)}")


def check_classes(listing: Listing, takes: int | None, config: Config) -> None:
    """Refuse a class number in `y` for which the model has no output; otherwise only the step that reads it would fail."""
    targets = listing.targets if listing.table else {"train": [0, len(listing.classes) - 1]}
    for split, bounds in targets.items() if takes is not None else ():
        if odd := [value for value in bounds if not 0 <= value < (takes or 0)]:
            raise ConfigError(
                f"model={config.model['file']}:{config.model['function']}: y of {split} has the class {odd[0]:g}, and the model's output "
                f"has {takes} numbers; sparse categorical cross-entropy takes the classes 0 to {(takes or 0) - 1}. Fix: as many outputs "
                "as classes, and classes numbered from 0"
            )


def check_scaling(config: Config, workers: int, existing: Path | None) -> None:
    """Refuse to resume on another number of hosts if that would change the learning rate."""
    before = len(LaunchRecord.read(existing).hosts) or workers
    if config.schedule.scaling != "none" and workers != before:
        raise ConfigError(
            f"workers={workers}: this run began with {before}, and schedule.scaling={config.schedule.scaling} makes its learning rate "
            f"depend on that; continue it with workers={before}, or give a new run name"
        )


def check_elastic(config: Config, workers: int) -> None:
    """Refuse a run that is meant to go on without a lost host, but could not with these settings.

    Raises:
        ConfigError: the setting, and the fix.
    """
    recovery, sizes = config.recovery, config.train.batch_sizes
    if not recovery.elastic:
        return
    if not recovery.max_restarts:
        raise ConfigError(
            "recovery.elastic=true: the others start again when they go on without a host, and recovery.max_restarts=0 forbids that. "
            "Fix: -e set=recovery.elastic=true,recovery.max_restarts=20"
        )
    if isinstance(sizes, tuple):
        raise ConfigError(
            f"recovery.elastic=true: train.batch_sizes or worker_batch_size gives each of {workers} workers its own size "
            f"({', '.join(map(str, sizes))}), which says nothing of fewer workers. Fix: leave them out, or measure them: "
            "-e set=train.batch_sizes=auto"
        )
    if recovery.min_workers > workers:
        raise ConfigError(
            f"recovery.min_workers={recovery.min_workers}: the run has {workers} workers. "
            "Fix: at most as many, or more workers (-e workers=N)"
        )
