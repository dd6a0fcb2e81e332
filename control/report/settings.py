"""Texts on a run's configuration.

A key without effect is left out: `adam` has no momentum, whatever the file says.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from control.common import configurations
from control.common.text import count, listed
from control.report.blocks import code
from control.report.facts import Run
from trainer.config import schema as configs

ONLY_OF: dict[str, dict[str, tuple[str, ...]]] = {
    "optimizer": {"momentum": ("sgd",), **dict.fromkeys(("beta_1", "beta_2", "epsilon"), ("adam", "adamw"))},
    "reduction": {
        **dict.fromkeys(("rank", "max_rank", "recycle", "min_elements", "warmup_steps"), ("powersgd",)),
        "dtype": ("powersgd", "half"),
    },
}
"""Keys that only some methods of a section (values of its `name`) read."""


@dataclass(frozen=True)
class Settings:
    """Texts on a run's settings."""

    run: Run

    @cached_property
    def effective(self) -> dict[str, Any]:
        """Every setting that had an effect, by dotted key; defaults fill keys newer than the run."""
        every: dict[str, Any] = {}
        for section, default in configurations.to_dict(configs.Config()).items():
            if section == "report":
                continue
            given = self.run.config.get(section, default)
            if isinstance(default, dict) and isinstance(given, dict):
                # A model has its own options, so another model's defaults do not apply.
                values = given if section == "model" else {**default, **given}
                every |= {f"{section}.{key}": value for key, value in values.items() if self._read(section, key)}
            else:
                every[section] = given
        return every | {"reduction.name": self.run.reduction}

    def _read(self, section: str, key: str) -> bool:
        config = self.run.config
        method = self.run.reduction if section == "reduction" else config[section].get("name") if section in config else None
        methods = ONLY_OF.get(section, {}).get(key)
        return methods is None or method in methods

    @property
    def optimizer(self) -> str:
        """The update rule with every number that it uses; of a compiled model, its name."""
        if compiled := self.run.record.compiled:
            return f"{code(compiled['optimizer'])}, as the model's function set it" if compiled["optimizer"] else "the model's own"
        given = self.effective
        method, rate = given["optimizer.name"], given["optimizer.learning_rate"]
        own = [key for key, methods in ONLY_OF["optimizer"].items() if method in methods]
        parts = [f"{key.replace('_', ' ') if key == 'momentum' else key} {given[f'optimizer.{key}']:g}" for key in own]
        parts += [f"weight decay {given['optimizer.weight_decay']:g}"] if given["optimizer.weight_decay"] else []
        parts += [f"gradients clipped to a norm of {given['optimizer.clip_norm']:g}"] if given["optimizer.clip_norm"] else []
        return f"{code(method)} with {listed([f'learning rate {rate:g}', *parts])}{self._schedule()}"

    def _schedule(self) -> str:
        """Text on the change of the learning rate; empty if it was constant."""
        given = self.effective
        parts = [f"scaled with the number of workers ({given['schedule.scaling']})"] if given["schedule.scaling"] != "none" else []
        if given["schedule.warmup_epochs"]:
            parts.append(f"reached over {given['schedule.warmup_epochs']:g} epochs of warm-up")
        steps = [f"{factor:g} after {epoch:g} epochs" for epoch, factor in given["schedule.decay"]]
        parts += [f"multiplied by {listed(steps)}"] if steps else []
        if given["schedule.shape"] != "constant":
            form = {"linear": "linearly", "cosine": "along a cosine"}[given["schedule.shape"]]
            parts.append(f"lowered {form} to {given['schedule.final']:g} times its highest value")
        return f" (the rate is {listed(parts)})" if parts else ""

    @property
    def augmentation(self) -> str:
        """Text on the augmentation of training images."""
        given = {key.partition(".")[2]: value for key, value in self.effective.items() if key.startswith("augment.")}
        parts = [f"cut out at random after padding by {count(given['crop'], 'pixel')}"] if given["crop"] else []
        parts += ["mirrored at random"] if given["flip"] else []
        parts += [f"moved by up to {given['shift']:.0%}"] if given["shift"] else []
        parts += [f"turned by up to {given['rotate']:g} degrees"] if given["rotate"] else []
        parts += [f"scaled by {given['scale'][0]:g} to {given['scale'][1]:g}"] if given["scale"] else []
        colours = [f"{name} by up to {given[name]:.0%}" for name in ("brightness", "contrast", "saturation") if given[name]]
        parts += [f"changed in {listed(colours)}"] if colours else []
        parts += [f"mixed in pairs (mixup, alpha {given['mixup']:g})"] if given["mixup"] else []
        return f"training images were {listed(parts)}" if parts else "training images were not augmented"

    @property
    def reduction(self) -> str:
        """Text on the reduction of gradients, and on the origin of that choice."""
        run = self.run
        chosen = " (chosen by `auto`)" if (run.config.get("reduction") or {}).get("name") == "auto" and run.reduction != "auto" else ""
        return f"gradients were reduced by {code(run.reduction)}{chosen}"

    @property
    def passes(self) -> str:
        """Text on the share of the training images in an epoch; empty if an epoch covered each image exactly once."""
        counts = self.run.record.counts
        seen, images = counts["steps_per_epoch"] * counts["global_batch"], counts["train_images"]
        if 0 <= seen - images < counts["global_batch"]:
            return ""
        if seen < images:
            return f" ({seen:,} of the {images:,} training {self.run.noun}s)"
        return f" ({seen / images:.1f} passes over the training {self.run.noun}s)"
