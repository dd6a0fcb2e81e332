"""The plan of a run, made on the control node before any host is touched.

From the user's operator variables, the inventory's workers and the files on the control node to one dict: run name, resolved
configuration, exact sizes. Nothing is written here.
"""

import contextlib
import datetime
import hashlib
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control import configurations, model_options, user_files
from control.datasets import class_counts, columns, fashion_mnist, idx, image_check, own, publish, trial
from control.datasets.image_check import Progress
from control.datasets.sources import Listing, Source, detect, open_source
from control.operator_variables import boolean, integer
from control.remote.trainer_process import refusal
from control.runs import asynchronous, mlflow_log, package, preset, run_results, snapshot_choice
from control.runs.cluster import trains
from trainer.checkpoint import starting_weights
from trainer.common.errors import ConfigError, LockstepError
from trainer.common.files import read_json, sha256_file, write_json
from trainer.common.safe_text import printable
from trainer.common.suggest import nearest
from trainer.config import schedule
from trainer.config import schema as configs
from trainer.config.schema import Config
from trainer.data import class_weight, manifest, transform
from trainer.data.manifest import SPLITS
from trainer.data.spec import Spec, noun, of_images
from trainer.host.claims import RUN_NAME
from trainer.models import user_model as own_model
from trainer.rundir import best_epoch
from trainer.rundir.layout import recorded
from trainer.rundir.schemas import read_history

NUMBER = re.compile(r"-?[\d.]+")
"""`workers` as a number, right or wrong; anything else names hosts."""
DEFAULT = "lecture_cnn"
"""Configuration if the command names none."""
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
RUNTIME_MB = 900
"""Memory of a worker besides its model: Python, TensorFlow, its threads (resident size with the small models, x86_64)."""
SERVER_MB = 400
"""The same of a parameter server, without the libraries that it shares with the worker beside it (670 MB resident, 345 of them shared)."""
LOGS_MB = 512
FIRST_EPOCHS = 10
"""A run may start when this many snapshots fit; it may end before its last epoch."""


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


def make(request: Request, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """The plan.

    Args:
        request: the user's.
        progress: called with the number of images checked so far, and their total.

    Raises:
        LockstepError: anything that can be refused before a host is touched.
    """
    switches = {name: boolean(name, request.options.get(name, False)) for name in ("detach", "queue", "quick", "evaluate", "show_config")}
    if switches["queue"] and switches["evaluate"] and "detach" not in request.options:
        raise ConfigError("evaluate=true, queue=true: the command returns once the run is queued. Fix: -e detach=false, and it waits")
    if switches["detach"] and switches["evaluate"]:
        raise ConfigError("evaluate=true, detach=true: a command that returns at once can't wait for the end; leave one of them out")
    name, existing = run_name(request)
    choice, opened = chosen(request) if existing is None and "config" not in request.options else (None, None)
    if choice and "run" not in request.options:
        name = _new_name(request, choice.config)
    asked, config_name = resolve(request, existing, choice)
    # A run that the preflight refused has a configuration, but nothing in it is fixed yet.
    started = existing if recorded(existing) else None
    hosts = choose_hosts(request, started)
    config = with_global_batch(with_batch_sizes(asked, hosts), len(hosts))
    source, listing = opened or open_dataset(config.data, request.write)
    check_model(config, listing)
    published = publish.published(listing, request.packs, config.data.allow_bad_images)
    if published is None:
        listing, bad = image_check.checked(source, listing, request.packs, config.data.allow_bad_images, progress)
        published = expected(listing, bad)
    check_scaling(config, len(hosts), started)
    check_elastic(config, len(hosts))
    if config.strategy.asynchronous:
        asynchronous.check(config, hosts)
    sizes = schedule.counts(config, len(hosts), published["train"], published["held_out"])
    configurations.check_sizes(sizes, schedule.sharing(config, len(hosts)))
    config = with_class_counts(config, listing, published, sizes, request.packs) if started is None else config
    trial.check(config.data, source, listing)
    dataset = describe(listing, published)
    weights = initial_weights(config, request, started)
    with warned(listing.warnings):
        size = parameters(config, len(listing.classes), request, dataset.get("spec"), weights)
    code = package.TRAINER.sha256()
    compiled, left, warnings = size.pop("compiled", None), size.pop("left", []), size.pop("warnings", [])
    check_compiled(compiled, request.options, config)
    check_monitor(compiled, config.train.monitor)
    if config.strategy.asynchronous:
        asynchronous.check_model(compiled)
        # A run that may be under way keeps its hosts, whatever the inventory says now.
        under_way = started is not None and run_results.read_summary(started)["state"] in (None, "RUNNING")
        apart = asynchronous.of_launch(started) if under_way else request.apart
        useful, idle = asynchronous.useful(apart, published["test"], compiled)
        hosts, warnings = asynchronous.with_roles(hosts, request.servers, useful), [*warnings, *idle]
    check_classes(listing, size.pop("takes", None), config)
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
    return {
        "run": name,
        "resume": started is not None,
        "config_name": config_name,
        "differing": []
        if existing is not None
        else differing(config_name, asked, configurations.parse_set(str(request.options.get("set", "")))),
        "choice": None if choice is None else vars(choice),
        "config": configurations.to_dict(config),
        "config_yaml": configurations.dump(config),
        "asked_yaml": configurations.dump(asked),
        "hosts": [with_environment(host, config) for host in hosts],
        "spares": [with_environment(host, config) for host in choose_spares(request, config, hosts)],
        "counts": vars(sizes),
        "parameters": size,
        "compiled": compiled,
        "weights": weights and {**weights, "left": left},
        "class_weights": class_weights(config, listing.classes),
        "needs": needs(config, sum(map(listing.count, SPLITS)), sizes.epochs, size, started is not None, columns.bytes_of(listing)),
        "dataset": dataset,
        "code": code[:16],
        "code_sha256": code,
        "expected_digest": recorded(started).get("dataset", {}).get("digest"),
        "complete": complete(started, sizes, config.train),
        "changes": changes(started, asked, config, sizes.workers),
        "warnings": []
        if started
        else [
            *batch_warnings(asked, sizes, overrides(request.options)),
            *split_warnings(overrides(request.options), listing),
            *listing.warnings,
            *augment_warnings(config.data),
            *warnings,
        ],
    }


def chosen(request: Request) -> tuple[preset.Choice, tuple[Source, Listing]]:
    """The configuration that fits the dataset when the command names none, and that dataset.

    A user's own model keeps the lecture's optimizer and epochs, and gets the images at their usual size.
    """
    given = overrides(request.options)
    data = configurations.build(
        configurations.override({}, {key: value for key, value in given.items() if key.partition(".")[0] == "data"})
    ).data
    source, listing = open_dataset(data, request.write)
    if listing.table is not None:
        return preset.Choice(DEFAULT, {"train.steps_per_epoch": None}, ""), (source, listing)
    choice = preset.choose(source, listing)
    if "model" not in request.options:
        return choice, (source, listing)
    kept = {key: value for key, value in choice.overrides.items() if key == "data.image_size"}
    # The lecture's 70 steps per epoch do not apply to another model.
    return preset.Choice(DEFAULT, {"train.steps_per_epoch": None, **kept}, ""), (source, listing)


def split_warnings(given: dict[str, Any], listing: Listing) -> list[str]:
    """What to warn the user about in the shares that are held out: a dataset has such examples of its own."""
    own = {"validation": listing.held_out is not None, "test": not listing.draws_test}
    examples = f"{noun(listing.table)}s"
    return [
        f"data.{split}_split={given[key]} has no effect: {listing.name} has {split} {examples} of its own"
        for split, has in own.items()
        if has and (key := f"data.{split}_split") in given
    ]


def batch_warnings(asked: Config, sizes: schedule.Counts, given: dict[str, Any]) -> list[str]:
    """What to warn the user about in the batch: another key overrides it, or there are fewer images."""
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


def needs(
    config: Config, images: int, epochs: int, size: dict[str, int], resumes: bool = False, columns_bytes: int | None = None
) -> dict[str, float]:
    """What a run takes on a host, MB: memory of a worker, and of a parameter server beside it; disk.

    Disk is for the cache of decoded images, training states and the first, or all, snapshots.
    `free_mb` must be free at the start: a resumed run already has most of its files. `snapshots` is a count, of `snapshot_mb` each.
    Columns (`columns_bytes`, None for images) are copied whatever their size.
    """
    cache = images * math.prod(config.data.image_size) / 2**20
    snapshot = size["total"] * 4 / 2**20
    slots = configurations.OPTIMIZERS[config.optimizer.name]
    states = snapshot * (1 + slots) * (config.checkpoint.keep + 1)
    copied = columns_bytes / 2**20 if columns_bytes is not None else cache if cache <= config.data.cache_limit_mb else 0
    start = LOGS_MB + copied + states
    kept = snapshot_choice.most_kept(config.checkpoint.snapshots, epochs)
    first = math.ceil(start + snapshot * min(kept, FIRST_EPOCHS))
    # Weights, optimizer arrays, gradients, the packed copy to send and the received one; the copy of a state that is being written.
    return {
        "memory_mb": math.ceil(RUNTIME_MB + (5 + 2 * slots) * snapshot),
        # Weights and optimizer arrays, and gradients that are on their way.
        "server_mb": math.ceil(SERVER_MB + (3 + slots) * snapshot),
        "disk_mb": first,
        "disk_whole_mb": math.ceil(start + snapshot * kept),
        "free_mb": LOGS_MB if resumes else first,
        "states_mb": round(states, 1),
        "snapshots": kept,
        "snapshot_mb": round(snapshot, 1),
    }


def complete(existing: Path | None, sizes: schedule.Counts, train: configs.Train) -> bool:
    """Whether a run has done everything asked of it, so that nothing is left to do."""
    summary = run_results.read_summary(existing) if existing else {}
    if existing is None or summary.get("state") != "SUCCEEDED":
        return False
    all_steps = summary.get("steps", 0) >= sizes.total_steps
    if all_steps or not summary.get("stalled"):
        return bool(all_steps or summary.get("ended_early"))
    # More patience may have been asked for since.
    return best_epoch.stalled(read_history(existing / "history.csv"), train.monitor, train.patience)


def run_name(request: Request) -> tuple[str, Path | None]:
    """The run's name, and its directory if it exists.

    Raises:
        ConfigError: the name could leave its folder or reach a shell.
    """
    asked = request.options.get("run")
    name = str(asked) if asked is not None else _new_name(request)
    check_run_name(name)
    folder = request.runs / name
    # A name made in this second may be another command's run by now.
    return name, folder if asked is not None and (folder / "config.yml").is_file() else None


def check_run_name(name: str) -> None:
    """Refuse a run name that could leave its folder or reach a shell."""
    if not RUN_NAME.fullmatch(name):
        raise ConfigError(f"run={name}: a run name is 1 to 64 of A-Z a-z 0-9 . _ - and starts with a letter or digit")


def _new_name(request: Request, default: str = DEFAULT) -> str:
    options = request.options
    named = options.get("script", options.get("model", options.get("config", default)))
    file = Path(str(named).split(".py:")[0])
    # A run's own configuration is `runs/NAME/config.yml`.
    config = file.parent.name if file.name == "config.yml" else file.stem
    stem = re.sub(r"[^a-z0-9]+", "-", config.lower()).strip("-")[:32] or "run"
    stamp = datetime.datetime.now(tz=datetime.UTC).strftime("%m%d-%H%M%S")
    return f"{stem}-{stamp}"


def resolve(request: Request, existing: Path | None, choice: preset.Choice | None = None) -> tuple[Config, str]:
    """The configuration from defaults, file, operator variables and `set`, and the name of its file.

    Args:
        request: the user's request.
        existing: directory of an existing run.
        choice: what fits the dataset, if no configuration was named.

    Raises:
        ConfigError: unknown keys or values, or a change that a resumed run can't take.
    """
    options = request.options
    name = str(options.get("config", choice.config if choice else DEFAULT))
    if existing is not None and "config" not in options:
        raw, name = configurations.load(existing / "config.yml"), "config.yml"
    else:
        raw = configurations.load(configurations.find(name))
    given = (choice.overrides if choice else {}) | overrides(options)
    config = with_model_defaults(configurations.build(configurations.override(raw, given)))
    if existing is not None and recorded(existing):
        config = _resumed(config, existing, options)
    mlflow_log.check(config.telemetry.mlflow)
    return config, name


def with_model_defaults(config: Config) -> Config:
    """The configuration with the model's defaults written out, so that a later version's defaults do not change this run.

    Raises:
        ConfigError: an unknown model or option.
    """
    return _changed(config, {"model": model_options.section_of(config.model)})


def _changed(config: Config, changes: dict[str, Any]) -> Config:
    return configurations.build(configurations.override(configurations.to_dict(config), changes))


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
            result["data.augment"] = own.augmentation(user_files.find("dataset", str(detected["path"])))[0]
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


def initial_weights(config: Config, request: Request, started: Path | None) -> dict[str, Any] | None:
    """Where the file of `train.weights` is here, and its name in the shared folder; None if no worker will read it.

    Raises:
        ConfigError: it is gone before the run has a state of its own.
    """
    given = config.train.weights
    if given is None:
        return None
    name = f"weights-{given['sha256'][:16]}{starting_weights.suffix(given['file'])}"
    asked = request.options.get("weights")
    local = Path(str(asked)).expanduser() if asked else request.packs.parent / "code" / name
    if local.is_file():
        return {"local": str(local.resolve()), "name": name, "file": given["file"], "sha256": given["sha256"]}
    if started is None:
        raise ConfigError(f"train.weights: {given['file']} is not known here; give the file: -e weights=FILE")
    return None


def _may_change(key: str) -> bool:
    """Whether a resumed run may change a key; each variable in `train.environment` is its own key."""
    return any(key == allowed or key.startswith(f"{allowed}.") for allowed in MAY_CHANGE + GUARDED_BY_DIGEST)


def _as_begun(existing: Path) -> dict[str, Any]:
    """The configuration of a run; rebuilt, so that keys newer than the run have their defaults."""
    return configurations.to_dict(with_model_defaults(configurations.build(configurations.load(existing / "config.yml"))))


def _resumed(config: Config, existing: Path, options: dict[str, Any]) -> Config:
    old = _as_begun(existing)
    config = _changed(config, {f"train.{key}": old["train"][key] for key in FIXED if key not in str(options.get("set", ""))})
    changed = [key for key in configurations.differences(old, configurations.to_dict(config)) if not _may_change(key)]
    if changed:
        raise ConfigError(
            f"run={existing.name}: this run exists with another {', '.join(changed)}. Leave out what sets "
            f"{'it' if len(changed) == 1 else 'them'} to continue it, or give a new run name. "
            f"Of a run that is continued, only {', '.join(MAY_CHANGE)} may change."
        )
    return config


def changes(existing: Path | None, asked: Config, config: Config, workers: int) -> list[str]:
    """Options typed now that differ from a launched run, as `train.epochs=90 (it has 60)`: training workers can't take them over.

    Args:
        existing: the run's directory; None for a new run.
        asked: the configuration as typed.
        config: the same with the values that follow from the inventory, which are no change.
        workers: how many are to train.
    """
    if existing is None:
        return []
    old = _as_begun(existing)
    by_inventory = set(configurations.differences(configurations.to_dict(asked), configurations.to_dict(config)))
    new = configurations.to_dict(config)
    keys = [key for key in configurations.differences(old, new) if key not in GUARDED_BY_DIGEST and key not in by_inventory]
    before = len(trains(recorded(existing)["hosts"]))
    return [
        *(f"{key}={configurations.value_at(new, key)} (it has {configurations.value_at(old, key)})" for key in keys),
        *([f"workers={workers} (it has {before})"] if workers != before else []),
    ]


SHOWN_APART = {"data.path", "data.source", "data.augment", "train.weights", "train.callbacks"}
"""Keys that have lines of their own in the plan."""


def differing(name: str, asked: Config, given: dict[str, Any]) -> list[str]:
    """Keys of a new run that are not as in its configuration, as `train.steps=20 instead of 70`.

    Args:
        name: of the configuration.
        asked: what came of it.
        given: values of `set` by dotted key; a model's other keys are its defaults.
    """
    old = configurations.to_dict(configurations.build(configurations.load(configurations.find(name))))
    new = configurations.to_dict(asked)
    keys = [key for key in configurations.differences(old, new) if key not in SHOWN_APART]
    keys = [key for key in keys if not key.startswith("model.") or key in given]
    return [printable(f"{key}={_value(new, key)} instead of {_value(old, key)}", 120) for key in keys]


def _value(plain: dict[str, Any], key: str) -> str:
    return json.dumps(configurations.value_at(plain, key))


def with_batch_sizes(config: Config, hosts: list[dict[str, Any]]) -> Config:
    """Take batch sizes from the inventory (`worker_batch_size`), unless the configuration has its own.

    Raises:
        ConfigError: an invalid size, or a list whose length is not the number of hosts.
    """
    listed = config.train.batch_sizes
    if listed is None and any(host.get("batch_size") is not None for host in hosts):
        sizes = [integer(f"worker_batch_size of {host['name']}", host.get("batch_size") or config.train.batch_size) for host in hosts]
        return _changed(config, {"train.batch_sizes": sizes})
    if isinstance(listed, tuple) and (misfit := configs.sizes_misfit(listed, len(hosts))):
        raise ConfigError(f"{misfit}, or null (-e set=train.batch_sizes=null) for equal ones")
    return config


def with_environment(host: dict[str, Any], config: Config) -> dict[str, Any]:
    """A host with all environment variables of its worker: the inventory's and the run's, which win."""
    both = host.get("environment", {}) | config.train.environment
    return host | {"environment": both} if both else host


def with_global_batch(config: Config, workers: int) -> Config:
    """Fix the global batch, so that a resumed run takes the same steps on any number of workers."""
    return _changed(config, {"train.global_batch": schedule.global_batch(config, workers)})


def with_class_counts(config: Config, listing: Listing, published: dict[str, Any], sizes: schedule.Counts, packs: Path) -> Config:
    """Count the classes of the training examples, if `train.class_weight` follows from them."""
    if config.train.class_weight != configs.BALANCED:
        return _changed(config, {"train.class_counts": None})
    if published["excluded"] and published["manifest"]:
        counts = class_counts.of_images(manifest.load(publish.place_of(packs, published["manifest"])), sizes)
    else:
        counts = class_counts.of_listing(listing, sizes)
    return _changed(config, {"train.class_counts": counts})


def class_weights(config: Config, names: list[str]) -> str | None:
    """What the classes weigh, for the plan.

    Raises:
        ConfigError: a class that there is not.
    """
    return class_counts.shown(config.train, names) if config.train.class_weight is not None else None


def augment_warnings(data: configs.Data) -> list[str]:
    """A function `augment` that the user may think changes the examples."""
    if data.source != "own" or data.augment is not None:
        return []
    warning = own.augmentation(user_files.find("dataset", str(data.path)))[1]
    return [warning] if warning else []


def choose_hosts(request: Request, existing: Path | None) -> list[dict[str, Any]]:
    """The hosts that train: those named, or the first N in the inventory, a resumed run's own before others.

    Raises:
        ConfigError: there are no such hosts, or not that many, or a run that may be training would train elsewhere, too.
    """
    by_name, asked = {host["name"]: host for host in [*request.hosts, *request.spares]}, request.options.get("workers")
    before = [host["name"] for host in trains(recorded(existing).get("hosts", []))]
    if asked is not None and not NUMBER.fullmatch(str(asked)):
        names = named_hosts(str(asked), list(by_name), request.apart)
        _refuse_elsewhere(str(asked), existing, before, names)
    else:
        number = integer("workers", asked) if asked is not None else len(before) or request.default_workers
        # Of a job, Slurm chose the hosts.
        own = [name for name in before if name in by_name and "slurm" not in recorded(existing)]
        others = [host["name"] for host in request.hosts if host["name"] not in own]
        names = [*own, *others][:number]
        if number > len(names):
            spares = f", and as spares {', '.join(host['name'] for host in request.spares)}" if request.spares else ""
            apart = f", and {', '.join(host['name'] for host in request.apart)}, which train nothing" if request.apart else ""
            there = f"{len(names)} ({', '.join(names)}){spares}{apart}"
            raise ConfigError(f"workers={number}: the inventory has {there}; add hosts or ask for fewer")
    hosts = [by_name[name] for name in names]
    check_roles(hosts)
    check_gpus(hosts)
    return hosts


def choose_spares(request: Request, config: Config, hosts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The spares of a run that may go on without a host.

    Raises:
        ConfigError: a spare that could not take the place of one of the `hosts`.
    """
    if not config.recovery.elastic or request.options.get("selftest"):
        return []
    spares = [host for host in request.spares if host not in hosts]
    check_roles(spares)
    check_gpus([*hosts, *spares])
    return spares


def named_hosts(asked: str, known: list[str], apart: Sequence[dict[str, Any]] = ()) -> list[str]:
    """The hosts in a list such as `node2,node3`, by rank.

    Raises:
        ConfigError: one is not in the inventory, with the nearest, or appears twice, or is one that trains nothing.
    """
    names = [name.strip() for name in asked.split(",")]
    roles = {host["name"]: host["role"] for host in apart}
    for name in names:
        if name in roles:
            group = asynchronous.GROUPS[roles[name]]
            raise ConfigError(
                f"workers={asked}: {name} is {roles[name]} in the inventory (group {group}), and takes no steps. Fix: name others; it is "
                "added by itself to asynchronous runs"
            )
        if name not in known:
            raise ConfigError(
                f"workers={asked}: {name!r} is no host of the inventory{nearest(name, known)}; expected how many train, or which of "
                f"{', '.join(known)}, as in workers={min(2, len(known))} or workers={','.join(known[-2:])}"
            )
        if names.count(name) > 1:
            raise ConfigError(f"workers={asked}: {name} appears twice; name each host once")
    return names


def _refuse_elsewhere(asked: str, existing: Path | None, before: list[str], names: list[str]) -> None:
    """Refuse other hosts for a run whose workers may live on its own: nothing on the others would know of them."""
    if existing is None or set(before) & set(names) or run_results.read_summary(existing)["state"] not in (None, "RUNNING"):
        return
    raise ConfigError(
        f"workers={asked}: run={existing.name} was started on {', '.join(before)}, and its end has not been seen; stop it there first: "
        f"ansible-playbook stop.yml -e run={existing.name}"
    )


def check_roles(hosts: list[dict[str, Any]]) -> None:
    """Refuse hosts with a role that none of those that train can have.

    Raises:
        ConfigError: which host, and its role.
    """
    for host in hosts:
        if "role" in host:
            raise ConfigError(
                f"worker_role={host['role']} of {host['name']}: expected ps, and only for a host in the groups workers and "
                f"parameter_servers. Fix: put {host['name']} into parameter_servers, too; an evaluator into evaluators, without "
                "worker_role; or take worker_role out of the inventory"
            )


def check_gpus(hosts: list[dict[str, Any]]) -> None:
    """Refuse workers with different numbers of GPUs: TensorFlow's collectives need the same number on each.

    Raises:
        ConfigError: which host has another number than the first.
    """
    usual = hosts[0].get("gpus", 0)
    for host in hosts:
        if host.get("gpus", 0) != usual:
            raise ConfigError(
                f"gpus={host.get('gpus', 0)} of {host['name']}: {hosts[0]['name']} has {usual}, but all workers of a run need the same "
                "number; set the smallest number for all, or leave hosts out (-e workers=N takes the first N)"
            )


def check_model(config: Config, listing: Listing) -> None:
    """Refuse to train a registered model, which takes images, on columns, and settings for images or for columns on the other."""
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


def check_compiled(compiled: dict[str, Any] | None, options: dict[str, Any], config: Config) -> None:
    """Refuse settings that a model which its function compiled would ignore, or could not follow.

    Raises:
        ConfigError: the setting, and where it belongs.
    """
    if compiled and not compiled["validates"] and boolean("evaluate", options.get("evaluate", False)):
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
    given = overrides(options)
    for key in given if compiled else ():
        if key.partition(".")[0] in ("optimizer", "schedule"):
            raise ConfigError(
                f"{key}={given[key]}: the model is compiled with an optimizer of its own ({(compiled or {})['optimizer']}), so this would "
                "change nothing. Fix: leave it out, or make it an option of the function: def build(rate=0.001), -e set=model.rate=0.01"
            )


def check_monitor(compiled: dict[str, Any] | None, asked: str | None) -> None:
    """Refuse a `train.monitor` that the model does not compute, without which the first epoch would be the best for ever.

    What a step of the model's own returns is only known when it has run: a worker then refuses the same.
    """
    if asked is None or (compiled and compiled["own"]):
        return
    computed = list(compiled["metrics"]) if compiled else ["loss", "accuracy"]
    columns = [*computed, *(f"val_{name}" for name in computed)]
    if best_epoch.monitor([], asked).metric not in columns:
        raise ConfigError(f"train.monitor={asked}: this model has no such metric; it has: {', '.join(columns)}")


def check_classes(listing: Listing, takes: int | None, config: Config) -> None:
    """Refuse a `y` that is the number of a class for which the model has no output: hosts would only see it at the step that reads it."""
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
    before = len(recorded(existing)["hosts"]) if recorded(existing) else workers
    if config.schedule.scaling != "none" and workers != before:
        raise ConfigError(
            f"workers={workers}: this run began with {before}, and schedule.scaling={config.schedule.scaling} makes its learning rate "
            f"depend on that; continue it with workers={before}, or give a new run name"
        )


def check_elastic(config: Config, workers: int) -> None:
    """Refuse a run that may go on without a host, but could not with these settings.

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


def open_dataset(data: configs.Data, may_fetch: bool) -> tuple[Source, Listing]:
    """The dataset, its names and labels; with `--check` the example data is not fetched, only expected."""
    if data.source == "fashion_mnist" and data.path is None and not may_fetch and not fashion_mnist.is_here():
        return idx.Idx("."), fashion_mnist.expected()
    source = open_source(data.source, data.path, data.target, data.features, data.test_split)
    return source, source.scan()


def expected(listing: Listing, excluded: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
    """What `publish.published` will report of a dataset, and of its images that can't be read."""
    counts = {split: listing.count(split) for split in SPLITS}
    return {"digest": None, "manifest": None, **counts, "held_out": listing.held_out, "excluded": list(excluded)}


def describe(listing: Listing, published: dict[str, Any]) -> dict[str, Any]:
    """The dataset's entries for the plan and the results."""
    return {
        "name": listing.name,
        "classes": listing.classes,
        "train": published["train"],
        "test": published["test"],
        "ignored": len(listing.ignored),
        "left_out": len(published["excluded"]),
        "digest": published["digest"],
        "manifest": published["manifest"],
        "note": listing.note,
        **({"spec": listing.table.spec.to_json()} if listing.table is not None else {}),
    }


@contextlib.contextmanager
def warned(warnings: Sequence[str]) -> Iterator[None]:
    """Tell a refusal of the model what is remarkable about its examples, which may be why."""
    try:
        yield
    except LockstepError as error:
        raise type(error)("\n".join([str(error), *warnings])) from None


def parameters(
    config: Config, classes: int, request: Request, spec: dict[str, Any] | None = None, weights: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Exact parameter counts and what the model is compiled with, cached by model, examples and code: Keras takes seconds to import."""
    size = list(config.data.image_size)
    own: dict[str, Any] = {"section": config.model, "own_callbacks": config.train.callbacks, "skip_mismatch": config.train.skip_mismatch}
    own |= {name: getattr(config.train, name) for name in ("last_layers", "optimizer_state")} | {"by_name": config.train.weights_by_name}
    own |= {"weights": weights and {**(config.train.weights or {}), "path": weights["local"]}}
    if config.train.class_weight:
        own["fed"] = transform.weighed(config, of_images(size) if spec is None else Spec.from_json(spec)).to_json()
    own |= {"size": size, "classes": classes, "spec": spec}
    key = hashlib.sha256(json.dumps({**own, "code": _models_digest()}, sort_keys=True).encode()).hexdigest()[:16]
    entry = request.parameter_cache / f"{key}.json"
    if entry.is_file():
        return dict(read_json(entry))
    argv = [sys.executable, "-m", "control", "parameters"]
    completed = subprocess.run(argv, input=json.dumps(own), capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        last = "\n".join(completed.stderr.strip().splitlines()[-5:])
        raise LockstepError(refusal(completed.stderr) or f"model {config.model['name']}: can't be built:\n{last}")
    counts: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    if request.write:
        write_json(entry, counts)
    return counts


def _models_digest() -> str:
    state = hashlib.sha256()
    for path in (
        *sorted((package.TRAINER.root / "trainer" / "models").glob("*.py")),
        package.TRAINER.root / "trainer" / "step" / "build_step.py",
        *(Path(__file__).with_name(name) for name in ("model.py", "model_errors.py")),
    ):
        state.update(path.read_bytes())
    return state.hexdigest()


def no_such_run(runs: Path, asked: str) -> str:
    """What to say of a run that is not there: the nearest name, and those that are."""
    names = [path.parent.name for path in sorted(runs.glob("*/config.yml"), key=lambda path: path.stat().st_mtime)]
    return f"run={asked}: no such run{nearest(asked, names)}; there are: {', '.join(names) or 'none'}"


def latest_run(runs: Path, asked: str | None) -> Path:
    """Directory of the run that was asked for, or of the newest that started.

    Raises:
        ConfigError: there is no run, or none of that name (with the nearest).
    """
    configs_by_age = sorted((path for path in runs.glob("*/config.yml")), key=lambda path: path.stat().st_mtime)
    names = [path.parent.name for path in configs_by_age]
    if asked is not None:
        check_run_name(asked)
        if asked not in names:
            raise ConfigError(no_such_run(runs, asked))
        return runs / asked
    started = [name for name in names if (runs / name / "cluster.json").is_file()]
    if not started:
        raise ConfigError("there is no run yet; start one with: ansible-playbook train.yml")
    return runs / started[-1]
