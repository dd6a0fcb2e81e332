"""A user's request for a plan: the parsed operator variables, the hosts on which the run may train, and its folders."""

import datetime
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from control.common import configurations, user_files
from control.common.operator_variables import boolean, integer
from control.datasets.listing.registry import detect
from control.datasets.sources import python_function
from control.runs.results.run_names import check_run_name
from trainer.checkpoint import starting_weights
from trainer.common.errors import ConfigError
from trainer.common.files import sha256_file
from trainer.rundir.launch_record import Host, LaunchRecord

DEFAULT = "lecture_cnn"
"""Configuration if the command names none."""
TEXTS = ("run", "config", "model", "weights", "callbacks", "dataset", "script")
SCRIPT = ("run", "script", "args", "outputs", "workers", "detach", "queue", "time_limit", "preflight")
"""Variables that are valid for a script's run."""
SWITCHES = ("detach", "queue", "quick", "evaluate", "timeline", "show_config", "remeasure", "selftest")
QUICK = {
    "train.epochs": 1,
    "train.steps": 10,
    "train.steps_per_epoch": 10,
    "data.limit_train": 2000,
    "data.limit_validation": 500,
}
"""Ten steps in total, whatever epochs a configuration has, and a validation that takes no longer than these."""
SELFTEST = {
    "train.epochs": 1,
    "train.steps": None,
    "train.steps_per_epoch": 2,
    "train.steps_per_call": 1,
    "telemetry.profile_every": 0,
}


@dataclass(frozen=True, kw_only=True)
class OperatorRequest:
    """The variables of a command that trains; each is parsed only here."""

    typed: Mapping[str, Any]
    """The variables as typed, for messages."""
    run: str | None = None
    config: str | None = None
    model: str | None = None
    weights: str | None = None
    callbacks: str | None = None
    dataset: str | None = None
    script: str | None = None
    workers: int | str | None = None
    """Number of hosts that train, or their names."""
    epochs: int | None = None
    time_limit: int | None = None
    """Limit in seconds; 0: none."""
    allow_bad_images: bool | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values of `set`, by dotted key."""
    detach: bool = False
    queue: bool = False
    quick: bool = False
    evaluate: bool = False
    timeline: bool = False
    show_config: bool = False
    remeasure: bool = False
    selftest: bool = False
    """True for the doctor's trial."""

    @classmethod
    def of(cls, typed: Mapping[str, Any]) -> "OperatorRequest":
        """Parse the variables; a command that does not train may have further ones.

        Raises:
            ConfigError: an invalid value, or two variables that exclude each other.
        """
        if "script" in typed:
            cls(typed=typed).check_script()
        given: dict[str, Any] = {name: str(typed[name]) for name in TEXTS if name in typed}
        given |= {name: boolean(name, typed.get(name, False)) for name in SWITCHES}
        request = cls(
            typed=typed,
            workers=_workers(typed.get("workers")),
            epochs=integer("epochs", typed["epochs"]) if "epochs" in typed else None,
            time_limit=integer("time_limit", typed["time_limit"], least=0) if "time_limit" in typed else None,
            allow_bad_images=boolean("allow_bad_images", typed["allow_bad_images"]) if "allow_bad_images" in typed else None,
            settings=configurations.parse_set(str(typed.get("set", ""))),
            **given,
        )
        request._check_switches()
        return request

    def check_script(self) -> None:
        """Refuse variables that are invalid for a script's run.

        Raises:
            ConfigError: the first one.
        """
        if others := [name for name in self.typed if name not in SCRIPT]:
            raise ConfigError(
                f"{others[0]}={self.typed[others[0]]}: Lockstep starts a script as it is, and {others[0]} is for models that it trains "
                "itself; leave it out, or give it to the script: -e 'args=\"--name value\"'"
            )

    def _check_switches(self) -> None:
        """Refuse switches that exclude each other."""
        for name in ("evaluate", "timeline"):
            if getattr(self, name) and self.queue and "detach" not in self.typed:
                raise ConfigError(
                    f"{name}=true, queue=true: the command returns once the run is queued. Fix: -e detach=false, and it waits"
                )
            if getattr(self, name) and self.detach:
                raise ConfigError(f"{name}=true, detach=true: a command that returns at once can't wait for the end; leave one of them out")
        if self.quick and self.epochs is not None:
            raise ConfigError(f"quick=true, epochs={self.epochs}: quick is ten steps in all; leave one of them out")

    @functools.cached_property
    def overrides(self) -> dict[str, Any]:
        """The configuration keys that the command sets, by dotted key; `set` wins over shorthands."""
        result: dict[str, Any] = {}
        if self.model is not None:
            result["model"] = user_files.model_section(self.model)
        if self.weights is not None:
            result["train.weights"] = _weights(self.weights)
        if self.callbacks is not None:
            result["train.callbacks"] = user_files.find("callbacks", self.callbacks).entry
        if self.quick:
            result |= QUICK
        if self.dataset is not None:
            detected = detect(self.dataset)
            result |= {"data.source": detected["source"], "data.path": detected["path"]}
            if detected["source"] == "own":
                result["data.augment"] = python_function.augmentation(user_files.find("dataset", str(detected["path"])))[0]
        if self.epochs is not None:
            result["train.epochs"] = self.epochs
        if self.time_limit is not None:
            result["train.time_limit"] = self.time_limit or None
        if self.allow_bad_images is not None:
            result["data.allow_bad_images"] = self.allow_bad_images
        # A trial stays short, whatever the settings of the training that it tries.
        return result | dict(self.settings) | (SELFTEST if self.selftest else {})

    def new_name(self, default: str = DEFAULT) -> str:
        """A new run's name, from the script, the model or the configuration, and the time."""
        file = Path((self.script or self.model or self.config or default).split(".py:")[0])
        # A run's own configuration is `runs/NAME/config.yml`.
        named = file.parent.name if file.name == "config.yml" else file.stem
        stem = re.sub(r"[^a-z0-9]+", "-", named.lower()).strip("-")[:32] or "run"
        stamp = datetime.datetime.now(tz=datetime.UTC).strftime("%m%d-%H%M%S")
        return f"{stem}-{stamp}"


def _workers(given: Any) -> int | str | None:
    """`workers` as a number if it looks like one, valid or not; otherwise as names of hosts."""
    return integer("workers", given) if re.fullmatch(r"-?[\d.]+", str(given)) else given if given is None else str(given)


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


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The inventory's workers, in order, by role."""

    hosts: Sequence[Host]
    """Workers that train."""
    spares: Sequence[Host] = ()
    """Workers that train only in the place of a lost one."""
    servers: Sequence[str] = ()
    """Names of the workers that keep the weights of an asynchronous run."""
    apart: Sequence[Host] = ()
    """Workers of an asynchronous run that only keep weights, or only evaluate, with their `role`."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to plan a run."""

    asked: OperatorRequest
    hosts: Sequence[Host] = ()
    """The hosts that train, by rank; empty until they are chosen."""
    apart: Sequence[Host] = ()
    """Hosts that an asynchronous run may use besides, with their `role`."""
    runs: Path
    packs: Path
    """Folder of published datasets; the folder of the trainer's code is beside it."""
    parameter_cache: Path
    write: bool
    """False with `--check`: only the index of a dataset's images and the list of unreadable ones are written."""

    @property
    def code(self) -> Path:
        """Folder of the trainer's code, of scripts and of initial weights."""
        return self.packs.parent / "code"

    def run_name(self) -> tuple[str, Path | None]:
        """The run's name, and its directory if it exists.

        Raises:
            ConfigError: the name could leave its folder or reach a shell.
        """
        name = self.asked.new_name() if self.asked.run is None else self.asked.run
        check_run_name(name)
        folder = self.runs / name
        # Another command may have taken a name made in this second.
        return name, folder if self.asked.run is not None and (folder / "config.yml").is_file() else None

    @functools.cached_property
    def started(self) -> Path | None:
        """The run's directory, if it was launched. A run refused by the preflight has a configuration, but nothing in it is fixed yet."""
        existing = self.run_name()[1]
        return existing if LaunchRecord.read(existing) else None
