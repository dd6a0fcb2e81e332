"""Make and show the plan of `sweep.yml`: which trials, in which order, what is measured already."""

import secrets
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from plugins.shared import children, control, meter, planning
from plugins.shared.trials import alone
from trainer import config as configs
from trainer.analysis import sweep, sweep_text, timings
from trainer.analysis.sweep import Wanted
from trainer.analysis.timings import STRONG, WEAK
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.files import read_json, write_json, write_text
from trainer.plan import integer, overrides, truth

FREE = ("train.epochs", "train.global_batch", "checkpoint.every_steps")
"""What may differ between trials of one sweep: columns of timings.csv."""
FIXED = {"train.steps": "data.limit_train", "train.steps_per_epoch": "data.limit_train", "train.time_limit": "data.limit_train"}
"""An epoch of a sweep is the whole training set at every number of workers; what shortens it honestly."""
SEEDS = 1 << 31
SPLIT_EVERY = 20
CONTINUES = "What was measured is kept. The same command continues the sweep."


class ActionModule(control.ControlAction):
    """Returns the facts `sweep_found`, `plan` and `cluster` (of its largest trial) and `run_options`."""

    def act(self) -> dict[str, Any]:
        """Validate what was typed, resolve it, show it; with `measure=false` only find the sweep."""
        options = control.operator_options("sweep", self.task_vars)
        truth("preflight", options.get("preflight", True))
        watts(options)
        if "meter" in options:
            meter.watts(str(options["meter"]))
        if not truth("measure", options.get("measure", True)):
            name = sweep.find(control.sweeps(), str(options["sweep"])) if "sweep" in options else _latest()
            found = {"name": name, "folder": str(control.SWEEPS / name), "trials": []}
            return {"ansible_facts": {"sweep_found": found, "cluster": planning.hosts(self.task_vars), "run_options": options}}
        return self._measuring(options)

    def _measuring(self, options: dict[str, Any]) -> dict[str, Any]:
        children.refuse_questions()
        if not self._task.check_mode:
            with alone():
                pass
        hosts = planning.hosts(self.task_vars)
        name = str(options.get("sweep", default_name(str(options.get("config", "lecture_cnn")), _inventory())))
        sweep.check_name(name)
        folder = control.SWEEPS / name
        config = resolve(options, folder)
        wanted = wants(options, len(hosts))
        known = check_same(folder, name, config, hosts, options)
        plan = self._plan(name, config, hosts, max(wanted.workers))
        record = {**new_record(name, options, config, hosts), **known, **facts_of(plan)}
        check_same_facts(name, known, record)
        trials = sweep.order(wanted, record["seed"])
        left = sweep.remaining(trials, timings.read(folder / "timings.csv"))
        if not self._task.check_mode:
            write_text(folder / "config.yml", configs.dump(config))
            write_json(folder / "summary.json", record)
        found = {**record, "folder": str(folder), "trials": [asdict(trial) for trial in left]}
        shown = sweep_text.plan(found, wanted, trials, left, plan, control.relative(folder))
        facts = {"sweep_found": found, "plan": plan, "cluster": plan["hosts"], "run_options": options}
        return {"show": shown, "ansible_facts": facts, **({"if_interrupted": CONTINUES} if left and not self._task.check_mode else {})}

    def _plan(self, name: str, config: Config, hosts: list[dict[str, Any]], workers: int) -> dict[str, Any]:
        """The warm-up's plan: a run like any trial, on all hosts that any trial uses."""
        place, run = f"{control.TRIALS}/{name}", f"{name}.{sweep.WARM_UP}"
        if self._task.check_mode:
            run += ".check"
        else:
            # What an interrupted warm-up left would make this one its continuation.
            shutil.rmtree(control.runs_folder(place) / run, ignore_errors=True)
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "config.yml"
            path.write_text(configs.dump(config), encoding="utf-8")
            options = {"run": run, "config": str(path), "workers": str(workers)}
            return planning.make(options, hosts, place, len(hosts), self.arguments["packs"], not self._task.check_mode)


def resolve(options: dict[str, Any], folder: Path) -> Config:
    """The configuration of every trial: an epoch is the whole training set whatever the number of workers.

    An existing sweep's own, unless another is asked for, with what was typed now.

    Raises:
        ConfigError: `set` says otherwise.
    """
    given = overrides({"epochs": "3", **options})
    for key, better in FIXED.items():
        if key in given:
            raise ConfigError(
                f"set={key}={given[key]}: an epoch of a sweep is the whole training set at every number of workers, or times could not be "
                f"compared; to make trials shorter: -e set={better}=0.1"
            )
    if "checkpoint.every_steps" in given:
        every = given["checkpoint.every_steps"]
        raise ConfigError(f"set=checkpoint.every_steps={every}: a sweep takes it as -e checkpoint_every={every}")
    own = folder / "config.yml"
    if own.is_file() and "config" not in options and timings.any_measured(folder / "timings.csv"):
        raw = configs.load(own)
    else:
        # Trials are short: more of their steps are taken apart than of a long training, at a cost of well below 1%.
        raw = configs.override(
            configs.load(configs.find(str(options.get("config", "lecture_cnn")))), {"telemetry.split_every": SPLIT_EVERY}
        )
    return configs.build(configs.override(raw, given | dict.fromkeys(FIXED)))


def facts_of(plan: dict[str, Any]) -> dict[str, Any]:
    """What the plan knows of a step and of what is trained."""
    return {
        "gradient_bytes": plan["parameters"]["trainable"] * 4,
        "train_images": plan["counts"]["train_images"],
        "dataset": plan["dataset"]["digest"],
        "code": plan["code"],
    }


def wants(options: dict[str, Any], hosts: int) -> Wanted:
    """What is to be measured.

    Raises:
        ConfigError: a value that is none, or more workers than hosts.
    """
    every = sweep.numbers("checkpoint_every", options.get("checkpoint_every", "0"), least=0)
    # What saved states cost is a question of its own: all hosts, unless a person says otherwise.
    default = f"1-{hosts}" if "checkpoint_every" not in options else str(hosts)
    workers = sweep.numbers("workers", options.get("workers", default))
    if max(workers) > hosts:
        raise ConfigError(f"workers={options.get('workers')}: the inventory has {hosts} hosts; add hosts or ask for fewer")
    repeats, epochs = (integer(key, options.get(key, 3)) for key in ("repeats", "epochs"))
    return Wanted(workers, repeats, epochs, every, sweep.scaling(str(options.get("scaling", WEAK))))


def new_record(name: str, options: dict[str, Any], config: Config, hosts: list[dict[str, Any]]) -> dict[str, Any]:
    """What a sweep's summary.json begins with."""
    seed = integer("seed", options["seed"]) if "seed" in options else 1 + secrets.randbelow(SEEDS)
    return {
        "name": name,
        "config_name": Path(str(options.get("config", "lecture_cnn"))).stem,
        "seed": seed,
        "batch_size": config.train.batch_size,
        "global_batch": config.train.global_batch or config.train.batch_size * len(hosts),
        "hosts": [control.place(host) for host in hosts],
    }


def check_same(folder: Path, name: str, config: Config, hosts: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    """What an existing sweep knows already.

    Raises:
        ConfigError: it was measured with another configuration or on other hosts, so that its times can't stand beside new ones.
    """
    path = folder / "summary.json"
    if not path.is_file() or not timings.any_measured(folder / "timings.csv"):
        return {}
    known = dict(read_json(path))
    old = configs.to_dict(configs.build(yaml.safe_load((folder / "config.yml").read_text(encoding="utf-8"))))
    changed = [key for key in configs.differences(old, configs.to_dict(config)) if key not in FREE]
    places = [control.place(host) for host in hosts]
    both = min(len(places), len(known["hosts"]))
    if known["hosts"][:both] != places[:both]:
        changed.append("list of hosts")
    if config.train.global_batch and options.get("scaling") == STRONG and config.train.global_batch != known["global_batch"]:
        changed.append("train.global_batch")
    if "seed" in options and integer("seed", options["seed"]) != known["seed"]:
        changed.append("seed")
    refuse_other(name, changed)
    # The order of what is left to measure follows the seed that was recorded first.
    return known if len(known["hosts"]) >= len(places) else {**known, "hosts": places}


def check_same_facts(name: str, known: dict[str, Any], record: dict[str, Any]) -> None:
    """Refuse to measure another trainer or other images beside what was measured.

    Raises:
        ConfigError: one of them differs.
    """
    words = {"dataset": "dataset", "code": "trainer (its code has changed)"}
    refuse_other(name, [word for key, word in words.items() if known.get(key) and record[key] and known[key] != record[key]])


def refuse_other(name: str, changed: list[str]) -> None:
    """Refuse where anything differs that makes times incomparable.

    Raises:
        ConfigError: something does.
    """
    if changed:
        raise ConfigError(
            f"sweep={name}: it was measured with another {', '.join(changed)}, and times of both can't be compared; "
            f"measure under another name: -e sweep={name[:30]}-2"
        )


def default_name(config: str, inventory: str) -> str:
    """`task_cnn-lab`: the same command continues the same sweep."""
    stem = "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in f"{Path(config).stem}-{inventory}".lower())
    return stem.strip("-_")[:32] or "sweep"


def watts(options: dict[str, Any]) -> float | None:
    """`watts_per_node`, or None.

    Raises:
        ConfigError: it is no power.
    """
    if "watts_per_node" not in options:
        return None
    try:
        value = float(options["watts_per_node"])
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"watts_per_node={options['watts_per_node']}: expected the watts that one host takes while it trains, as in 6.4")
    return value


def _inventory() -> str:
    given = control.inventory()
    return given.parent.name if given.is_file() else given.name


def _latest() -> str:
    names = control.sweeps()
    if not names:
        raise ConfigError("there is no sweep yet; measure one with: ansible-playbook sweep.yml")
    return names[-1]
