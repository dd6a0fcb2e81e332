"""The plan of a run, made on the control node before any host is touched.

From what a person typed (operator variables), the inventory's workers and the files on the control
node to one dict: run name, resolved configuration, exact sizes. Nothing is written here.
"""

import datetime
import hashlib
import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainer import config as configs
from trainer import models, package, schedule
from trainer.config import Config, nearest
from trainer.data import fashion_mnist, publish
from trainer.data.sources import Listing, detect, open_source
from trainer.errors import ConfigError, LockstepError, refusal
from trainer.files import read_json, write_json
from trainer.models import own
from trainer.rundir import recorded

RUN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
DEFAULT = "lecture_cnn"
"""Configuration of a command that names none."""
MAY_CHANGE = ("train.epochs", "train.steps", "train.time_limit", "train.batch_sizes", "data.loaders")
GUARDED_BY_DIGEST = ("data.path", "data.source")
QUICK = {"train.epochs": 1, "train.steps_per_epoch": 10, "data.limit_train": 2000}
SELFTEST = {"train.epochs": 1, "train.steps": None, "train.steps_per_epoch": 2, "train.steps_per_call": 1}
RUNTIME_MB = 900
"""Memory of a worker beside its model: Python, TensorFlow, its threads (resident size of the small models, x86_64)."""
SLOTS = {"sgd": 1, "adam": 2}
"""Arrays of the weights' size that an optimizer keeps."""
LOGS_MB = 512
FIRST_EPOCHS = 10
"""A run may start when so many snapshots fit; it may well end before the last epoch that was asked for."""


@dataclass(frozen=True)
class Request:
    """What a person asked of `train.yml`."""

    options: dict[str, Any]
    """Operator variables as typed (texts)."""
    hosts: list[dict[str, Any]]
    """Workers of the inventory, in its order: name, address, port."""
    default_workers: int
    runs: Path
    packs: Path
    parameter_cache: Path
    write: bool
    """False with `--check`: nothing is written but which images an own dataset, or one of TFRecords, has."""


def make(request: Request) -> dict[str, Any]:
    """The plan.

    Raises:
        LockstepError: anything that can be refused before a host is touched.
    """
    switches = {name: truth(name, request.options.get(name, False)) for name in ("detach", "quick", "evaluate", "show_config")}
    if switches["detach"] and switches["evaluate"]:
        raise ConfigError("evaluate=true, detach=true: a command that returns at once can't wait for the end; leave one of them out")
    name, existing = run_name(request)
    asked, config_name = resolve(request, existing)
    # One that was refused by the preflight is known by its configuration, and has fixed nothing yet.
    started = existing if recorded(existing) else None
    hosts = choose_hosts(request, started)
    config = with_global_batch(with_batch_sizes(asked, hosts), len(hosts))
    listing = list_dataset(config, request.write)
    known = publish.published(listing, request.packs, config.data.allow_bad_images) or expected(listing)
    check_scaling(config, len(hosts), started)
    sizes = schedule.counts(config, len(hosts), known["train"], known["held_out"])
    schedule.check_sizes(sizes, len(hosts))
    size = parameters(config, len(listing.classes), request)
    return {
        "run": name,
        "resume": started is not None,
        "config_name": config_name,
        "config": configs.to_dict(config),
        "config_yaml": configs.dump(config),
        "asked_yaml": configs.dump(asked),
        "hosts": hosts,
        "counts": vars(sizes),
        "parameters": size,
        "needs": needs(config, sum(len(files) for files in listing.files.values()), sizes.epochs, size),
        "dataset": describe(listing, known),
        "code": package.digest(),
        "newest_state": newest_state(started),
        "newest_memory": newest_memory(started),
        "expected_digest": recorded(started).get("dataset", {}).get("digest"),
        "complete": complete(started, sizes),
    }


def needs(config: Config, images: int, epochs: int, size: dict[str, int]) -> dict[str, int]:
    """What a run takes on a host, MB: memory; disk for the cache of decoded images, training states and the first, or all, snapshots."""
    cache = images * math.prod(config.data.image_size) / 2**20
    snapshot = size["total"] * 4 / 2**20
    slots = SLOTS[config.optimizer.name]
    start = LOGS_MB + (cache if cache <= config.data.cache_limit_mb else 0) + snapshot * (1 + slots) * (config.checkpoint.keep + 1)
    # Weights, what the optimizer keeps, gradients, the packed copy that is sent and the one that is received.
    return {
        "memory_mb": math.ceil(RUNTIME_MB + (4 + slots) * snapshot),
        "disk_mb": math.ceil(start + snapshot * min(epochs, FIRST_EPOCHS)),
        "disk_whole_mb": math.ceil(start + snapshot * epochs),
    }


def newest_state(existing: Path | None) -> str:
    """Name of the newest training state collected to the control node, or an empty string."""
    names = [path.name for path in (existing / "state").glob("step-*.npz")] if existing else []
    return max(names, default="")


def newest_memory(existing: Path | None) -> dict[str, str]:
    """By host, the name of the newest file of what its reduction remembered, as collected to the control node."""
    names: dict[str, str] = {}
    for path in sorted((existing / "workers").glob("*/memory/step-*.npz")) if existing else []:
        names[path.parent.parent.name] = path.name
    return names


def complete(existing: Path | None, sizes: schedule.Counts) -> bool:
    """Whether a run has done all that is asked of it, so that there is nothing to do."""
    path = existing / "summary.json" if existing else None
    if path is None or not path.is_file():
        return False
    summary = read_json(path)
    return bool(summary["state"] == "SUCCEEDED" and summary["steps"] >= sizes.total_steps)


def run_name(request: Request) -> tuple[str, Path | None]:
    """The run's name, and its directory when it exists already.

    Raises:
        ConfigError: the name could leave its folder or reach a shell.
    """
    asked = request.options.get("run")
    name = str(asked) if asked is not None else _new_name(request)
    check_run_name(name)
    folder = request.runs / name
    return name, folder if (folder / "config.yml").is_file() else None


def check_run_name(name: str) -> None:
    """Refuse a run name that could leave its folder or reach a shell."""
    if not RUN_NAME.fullmatch(name):
        raise ConfigError(f"run={name}: a run name is 1 to 64 of a-z 0-9 . _ - and starts with a letter or digit")


def _new_name(request: Request) -> str:
    chosen = request.options.get("model", request.options.get("config", DEFAULT))
    config = Path(str(chosen).split(".py:")[0]).stem.lower()
    stem = re.sub(r"[^a-z0-9]+", "-", config).strip("-")[:32] or "run"
    stamp = datetime.datetime.now(tz=datetime.UTC).strftime("%m%d-%H%M%S")
    return f"{stem}-{stamp}"


def resolve(request: Request, existing: Path | None) -> tuple[Config, str]:
    """The configuration from defaults, file, operator variables and `set`, and the name of its file.

    Raises:
        ConfigError: unknown keys or values, or a change that a resumed run can't take.
    """
    options = request.options
    name = str(options.get("config", DEFAULT))
    if existing is not None and "config" not in options:
        raw, name = configs.load(existing / "config.yml"), "config.yml"
    else:
        raw = configs.load(configs.find(name))
    given = overrides(options)
    if "model" in options and "config" not in options and existing is None:
        # The lecture's own 70 steps an epoch are no part of another's model.
        given = {"train.steps_per_epoch": None} | given
    config = whole(configs.build(configs.override(raw, given)))
    if existing is not None and recorded(existing):
        config = _resumed(config, existing, options)
    return config, name


def whole(config: Config) -> Config:
    """The configuration with the model's own defaults written out: those of a later version are no part of this run.

    Raises:
        ConfigError: an unknown model or option.
    """
    return configs.build(configs.override(configs.to_dict(config), {"model": models.section_of(config.model)}))


def overrides(options: dict[str, Any]) -> dict[str, Any]:
    """Operator variables as dotted keys; `set` wins over shorthands."""
    result: dict[str, Any] = {}
    if "model" in options:
        result["model"] = own.section(str(options["model"]))
    if truth("quick", options.get("quick", False)):
        result |= QUICK
    if options.get("selftest"):
        result |= SELFTEST
    if "dataset" in options:
        found = detect(str(options["dataset"]))
        result |= {"data.source": found["source"], "data.path": found["path"]}
    if "epochs" in options:
        result["train.epochs"] = integer("epochs", options["epochs"])
    if "allow_bad_images" in options:
        result["data.allow_bad_images"] = truth("allow_bad_images", options["allow_bad_images"])
    return result | configs.parse_set(str(options.get("set", "")))


def integer(name: str, value: Any) -> int:
    """An operator variable as a whole number from 1.

    Raises:
        ConfigError: it is none.
    """
    text = str(value)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name}={text}: expected a whole number from 1")
    return int(text)


def truth(name: str, value: Any) -> bool:
    """An operator variable as true or false.

    Raises:
        ConfigError: it is neither.
    """
    text = str(value).lower()
    if text not in ("true", "false", "yes", "no", "1", "0", "on", "off"):
        raise ConfigError(f"{name}={value}: expected true or false")
    return text in ("true", "yes", "1", "on")


def _resumed(config: Config, existing: Path, options: dict[str, Any]) -> Config:
    # Built anew: a key that came after that run has its default in it.
    old = configs.to_dict(whole(configs.build(yaml.safe_load((existing / "config.yml").read_text(encoding="utf-8")))))
    if "global_batch" not in str(options.get("set", "")):
        config = configs.build(configs.override(configs.to_dict(config), {"train.global_batch": old["train"]["global_batch"]}))
    changed = [key for key in configs.differences(old, configs.to_dict(config)) if key not in MAY_CHANGE + GUARDED_BY_DIGEST]
    if changed:
        raise ConfigError(
            f"run={existing.name}: this run exists with another {', '.join(changed)}; only {', '.join(MAY_CHANGE)} may change "
            f"when it is continued. Leave that out to continue it, or give a new run name."
        )
    return config


def with_batch_sizes(config: Config, hosts: list[dict[str, Any]]) -> Config:
    """Take over the batch sizes that the inventory gives to hosts (`worker_batch_size`), unless the configuration has its own.

    Raises:
        ConfigError: a size that is none, or a list of another length than there are hosts.
    """
    listed = config.train.batch_sizes
    if listed is None and any(host.get("batch_size") is not None for host in hosts):
        sizes = [integer(f"worker_batch_size of {host['name']}", host.get("batch_size") or config.train.batch_size) for host in hosts]
        return configs.build(configs.override(configs.to_dict(config), {"train.batch_sizes": sizes}))
    if isinstance(listed, tuple) and (misfit := configs.sizes_misfit(listed, len(hosts))):
        raise ConfigError(f"{misfit}, or null (-e set=train.batch_sizes=null) for equal ones")
    return config


def with_global_batch(config: Config, workers: int) -> Config:
    """Fix the global batch, so that a resumed run takes the same steps on any number of workers."""
    batch = schedule.global_batch(config, workers)
    return configs.build(configs.override(configs.to_dict(config), {"train.global_batch": batch}))


def choose_hosts(request: Request, existing: Path | None) -> list[dict[str, Any]]:
    """The hosts that train: the first so many of the inventory; a resumed run keeps its number.

    Raises:
        ConfigError: more are asked for than there are.
    """
    asked = request.options.get("workers")
    if asked is not None:
        number = integer("workers", asked)
    elif recorded(existing):
        number = len(recorded(existing)["hosts"])
    else:
        number = request.default_workers
    if number > len(request.hosts):
        names = ", ".join(host["name"] for host in request.hosts)
        raise ConfigError(f"workers={number}: the inventory has {len(request.hosts)} ({names}); add hosts or ask for fewer")
    check_roles(request.hosts[:number])
    check_gpus(request.hosts[:number])
    return request.hosts[:number]


def check_roles(hosts: list[dict[str, Any]]) -> None:
    """Refuse hosts that are to be something else than workers: all of a run's train, and keep all weights.

    Raises:
        ConfigError: which host, and what it was to be.
    """
    for host in hosts:
        if host.get("role", "worker") != "worker":
            raise ConfigError(
                f"worker_role={host['role']} of {host['name']}: all hosts of a run are workers, and the first is their chief; "
                "take worker_role out of the inventory, or leave the host out (-e workers=N takes the first N)"
            )


def check_gpus(hosts: list[dict[str, Any]]) -> None:
    """Refuse workers with different numbers of GPUs: TensorFlow's collectives take as many devices of each.

    Raises:
        ConfigError: which host has another number than the first.
    """
    usual = hosts[0].get("gpus", 0)
    for host in hosts:
        if host.get("gpus", 0) != usual:
            raise ConfigError(
                f"gpus={host.get('gpus', 0)} of {host['name']}: {hosts[0]['name']} has {usual}, and all workers of a run take as many; "
                "set the smallest number for all, or leave hosts out (-e workers=N takes the first N)"
            )


def check_scaling(config: Config, workers: int, existing: Path | None) -> None:
    """Refuse to resume on another number of hosts where that would change the learning rate."""
    before = len(recorded(existing)["hosts"]) if recorded(existing) else workers
    if config.schedule.scaling != "none" and workers != before:
        raise ConfigError(
            f"workers={workers}: this run began with {before}, and schedule.scaling={config.schedule.scaling} makes its learning rate "
            f"depend on that; continue it with workers={before}, or give a new run name"
        )


def list_dataset(config: Config, may_fetch: bool) -> Listing:
    """Names and labels of the dataset; with `--check` the example data is not fetched, only expected."""
    data = config.data
    if data.source == "fashion_mnist" and data.path is None and not may_fetch and not fashion_mnist.is_here():
        return fashion_mnist.expected()
    return open_source(data.source, data.path).scan()


def expected(listing: Listing) -> dict[str, Any]:
    """What `publish.published` will tell of a dataset, if all of its images can be read."""
    counts = {split: len(files) for split, files in listing.files.items()}
    return {"digest": None, **counts, "held_out": listing.held_out, "excluded": []}


def describe(listing: Listing, known: dict[str, Any]) -> dict[str, Any]:
    """What the plan and the results say of the dataset."""
    return {
        "name": listing.name,
        "classes": listing.classes,
        "train": known["train"],
        "test": known["test"],
        "ignored": len(listing.ignored),
        "left_out": len(known["excluded"]),
        "digest": known["digest"],
    }


def parameters(config: Config, classes: int, request: Request) -> dict[str, int]:
    """Exact parameter counts, remembered by model and code: Keras takes seconds to import."""
    section = {"model": config.model, "size": list(config.data.image_size), "classes": classes, "code": _models_digest()}
    key = hashlib.sha256(json.dumps(section, sort_keys=True).encode()).hexdigest()[:16]
    entry = request.parameter_cache / f"{key}.json"
    if entry.is_file():
        return dict(read_json(entry))
    argv = [sys.executable, "-m", "trainer", "parameters"]
    done = subprocess.run(argv, input=json.dumps(section), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise LockstepError(refusal(done.stderr) or f"model {config.model['name']}: can't be built:\n{last}")
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    if request.write:
        write_json(entry, found)
    return found


def _models_digest() -> str:
    state = hashlib.sha256()
    for path in sorted((package.PACKAGE / "models").glob("*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()


def latest_run(runs: Path, asked: str | None) -> Path:
    """Directory of the run that was asked for, or of the newest that started.

    Raises:
        ConfigError: there is none, or none of that name (with the nearest).
    """
    found = sorted((path for path in runs.glob("*/config.yml")), key=lambda path: path.stat().st_mtime)
    names = [path.parent.name for path in found]
    if asked is not None:
        check_run_name(asked)
        if asked not in names:
            raise ConfigError(f"run={asked}: no such run{nearest(asked, names)}; there are: {', '.join(names) or 'none'}")
        return runs / asked
    started = [name for name in names if (runs / name / "cluster.json").is_file()]
    if not started:
        raise ConfigError("there is no run yet; start one with: ansible-playbook train.yml")
    return runs / started[-1]
