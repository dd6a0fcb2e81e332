"""A run's configuration in words, and the differences between several runs' configurations. Pure functions.

A key without effect is left out: `adam` has no momentum, whatever the file says.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from control.common import configurations
from control.common.text import count, listed
from control.report.blocks import code, plain
from control.report.facts import Run
from trainer.config import schema as configs
from trainer.rundir.launch_record import LaunchRecord, training

ONLY_OF: dict[str, dict[str, tuple[str, ...]]] = {
    "optimizer": {"momentum": ("sgd",), **dict.fromkeys(("beta_1", "beta_2", "epsilon"), ("adam", "adamw"))},
    "reduction": {
        **dict.fromkeys(("rank", "max_rank", "recycle", "min_elements", "warmup_steps"), ("powersgd",)),
        "dtype": ("powersgd", "half"),
    },
}
"""Keys of a section that only some of its methods (its `_name`) read."""
SECTIONS = {"augment": "augmentation", "schedule": "learning rate", "checkpoint": "saved states", "telemetry": "telemetry"}
"""Sections whose names do not read well in a sentence."""
NONE = "-"
"""Stands for a setting that a run does not have."""


def effective(run: Run) -> dict[str, Any]:
    """Every setting that had an effect, by dotted key; defaults fill keys newer than the run."""
    every: dict[str, Any] = {}
    for section, default in configurations.to_dict(configs.Config()).items():
        if section == "report":
            continue
        given = run.config.get(section, default)
        if isinstance(default, dict) and isinstance(given, dict):
            # A model's options are its own: another model's defaults do not apply.
            values = given if section == "model" else {**default, **given}
            every |= {f"{section}.{key}": value for key, value in values.items() if _read(run, section, key)}
        else:
            every[section] = given
    return every | {"reduction.name": run.reduction}


def _read(run: Run, section: str, key: str) -> bool:
    method = run.reduction if section == "reduction" else run.config[section].get("name") if section in run.config else None
    methods = ONLY_OF.get(section, {}).get(key)
    return methods is None or method in methods


def names(differing: Mapping[str, Any]) -> list[str]:
    """Keys of `differences` for a sentence; if methods differ, keys that only one of them reads are left out."""
    methods = [section for section in ("model", *ONLY_OF) if f"{section}.name" in differing]
    own = {f"{section}.{key}" for section in methods for key in ONLY_OF.get(section, {})}
    return [_name(key) for key in differing if key not in own and not ("model" in methods and key.startswith("model."))]


def _name(key: str) -> str:
    """A dotted key for a sentence: `data.image_size` as `image size`; with the section's name if its last word is too vague."""
    section, _, own = key.rpartition(".")
    if own == "name":
        return section
    words = own.replace("_", " ")
    return words if section in ("", "train", "data") else f"{SECTIONS.get(section, section)} {words}"


def _beside(run: Run) -> dict[str, str]:
    """Facts outside the configuration that affect accuracy or speed."""
    cluster, counts = run.cluster, run.cluster["counts"]
    return {
        "dataset": f"{plain(cluster['dataset']['name'])} ({cluster['dataset']['digest'][:8]})",
        "training images": f"{counts['train_images']:,}",
        "validation images": f"{counts['validation_images']:,}",
        "finished epochs": str(run.last["epoch"]),
        "workers": str(len(training(LaunchRecord.of(cluster).hosts))),
        "trainer's code": str(cluster["code"]),
    }


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """All differences between runs: name -> its value in each; settings under their dotted keys, in the configuration's order."""
    seen = [_beside(run) for run in runs]
    settings = [effective(run) for run in runs]
    order = list(configurations.to_dict(configs.Config()))
    keys = sorted(dict.fromkeys(key for one in settings for key in one), key=lambda key: order.index(key.partition(".")[0]))
    rows = {what: [one[what] for one in seen] for what in seen[0]} | {key: [_shown(one, key) for one in settings] for key in keys}
    # One path may hold two datasets, and two paths one: the digest decides. Requested and finished epochs are
    # shown once if equal.
    named = {"data.path", *(["train.epochs"] if rows["train.epochs"] == rows["finished epochs"] else [])}
    return {key: values for key, values in rows.items() if len(set(values)) > 1 and key not in named}


def _shown(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key, NONE)
    if key == "data.image_size" and isinstance(value, list):
        return "x".join(map(str, value))
    if isinstance(value, dict) and "source" in value:
        return plain(f"{value['file']}:{value['function']}")
    if isinstance(value, str) and "\n" in value:
        # The text of a user's file, which the report shows elsewhere.
        return f"{count(len(value.splitlines()), 'line')}, sha256 {hashlib.sha256(value.encode()).hexdigest()[:8]}"
    return NONE if value in (None, [], "") else plain(str(value).lower() if isinstance(value, bool) else value)


def optimizer(run: Run) -> str:
    """The update rule with every number that it uses; of a compiled model, its name."""
    if compiled := run.cluster.get("compiled"):
        return f"{code(compiled['optimizer'])}, as the model's function set it" if compiled["optimizer"] else "the model's own"
    given = effective(run)
    method, rate = given["optimizer.name"], given["optimizer.learning_rate"]
    own = [key for key, methods in ONLY_OF["optimizer"].items() if method in methods]
    parts = [f"{key.replace('_', ' ') if key == 'momentum' else key} {given[f'optimizer.{key}']:g}" for key in own]
    parts += [f"weight decay {given['optimizer.weight_decay']:g}"] if given["optimizer.weight_decay"] else []
    parts += [f"gradients clipped to a norm of {given['optimizer.clip_norm']:g}"] if given["optimizer.clip_norm"] else []
    return f"{code(method)} with {listed([f'learning rate {rate:g}', *parts])}{_schedule(given)}"


def _schedule(given: Mapping[str, Any]) -> str:
    """How the learning rate changed; empty if it did not."""
    parts = [f"scaled with the number of workers ({given['schedule.scaling']})"] if given["schedule.scaling"] != "none" else []
    if given["schedule.warmup_epochs"]:
        parts.append(f"reached over {given['schedule.warmup_epochs']:g} epochs of warm-up")
    steps = [f"{factor:g} after {epoch:g} epochs" for epoch, factor in given["schedule.decay"]]
    parts += [f"multiplied by {listed(steps)}"] if steps else []
    if given["schedule.shape"] != "constant":
        form = {"linear": "linearly", "cosine": "along a cosine"}[given["schedule.shape"]]
        parts.append(f"lowered {form} to {given['schedule.final']:g} times its highest value")
    return f" (the rate is {listed(parts)})" if parts else ""


def augmentation(run: Run) -> str:
    """How training images were augmented."""
    given = {key.partition(".")[2]: value for key, value in effective(run).items() if key.startswith("augment.")}
    parts = [f"cut out at random after padding by {count(given['crop'], 'pixel')}"] if given["crop"] else []
    parts += ["mirrored at random"] if given["flip"] else []
    parts += [f"moved by up to {given['shift']:.0%}"] if given["shift"] else []
    parts += [f"turned by up to {given['rotate']:g} degrees"] if given["rotate"] else []
    parts += [f"scaled by {given['scale'][0]:g} to {given['scale'][1]:g}"] if given["scale"] else []
    colours = [f"{name} by up to {given[name]:.0%}" for name in ("brightness", "contrast", "saturation") if given[name]]
    parts += [f"changed in {listed(colours)}"] if colours else []
    parts += [f"mixed in pairs (mixup, alpha {given['mixup']:g})"] if given["mixup"] else []
    return f"training images were {listed(parts)}" if parts else "training images were not augmented"


def reduction(run: Run) -> str:
    """How gradients were summed, and who chose it."""
    chosen = " (chosen by `auto`)" if (run.config.get("reduction") or {}).get("name") == "auto" and run.reduction != "auto" else ""
    return f"gradients were reduced by {code(run.reduction)}{chosen}"


def passes(run: Run) -> str:
    """How much of the training images an epoch covered; empty if each exactly once."""
    counts = run.cluster["counts"]
    seen, images = counts["steps_per_epoch"] * counts["global_batch"], counts["train_images"]
    if 0 <= seen - images < counts["global_batch"]:
        return ""
    if seen < images:
        return f" ({seen:,} of the {images:,} training {run.noun}s)"
    return f" ({seen / images:.1f} passes over the training {run.noun}s)"
