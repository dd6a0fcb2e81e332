"""Make and show the plan of `sweep.yml`: which trials, in which order, which are already measured."""

import json
import secrets
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from control import children, command_line, project
from control.campaign import SUMMARY, alone, check_name, other_hosts, refuse_other, remaining
from control.doctor.prediction import bytes_per_step
from control.operator_variables import boolean, integer
from control.runs import cluster, planning
from control.runs.plan import overrides
from control.sweep import meter, sweep, sweep_text, timings
from control.sweep.sweep import Wanted
from control.sweep.timings import STRONG, WEAK
from control.task import Task
from trainer import config as configs
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.files import read_json, write_json, write_text

FREE = ("train.epochs", "train.global_batch", "checkpoint.every_steps")
"""Keys that may differ between trials of one sweep: columns of timings.csv."""
FIXED = {"train.steps": "data.limit_train", "train.steps_per_epoch": "data.limit_train", "train.time_limit": "data.limit_train"}
"""An epoch of a sweep is the whole training set at every number of workers; these keys map to the one that shortens it fairly."""
SEEDS = 1 << 31
PROFILE_EVERY = 20
CONTINUES = "What was measured is kept. The same command continues the sweep."


class Plan(Task):
    """Returns the facts `sweep_found`, `plan` and `cluster` (of its largest trial) and `run_options`."""

    def act(self) -> dict[str, Any]:
        """Validate the options, resolve them, show the plan; with `measure=false` only find the sweep."""
        options = command_line.operator_options("sweep", self.task_vars)
        boolean("preflight", options.get("preflight", True))
        watts(options)
        if "meter" in options:
            meter.watts(str(options["meter"]))
        if not boolean("measure", options.get("measure", True)):
            names = project.sweeps()
            if not names and "sweep" not in options:
                raise ConfigError("there is no sweep yet; measure one with: ansible-playbook sweep.yml")
            name = sweep.find(names, str(options["sweep"])) if "sweep" in options else names[-1]
            found_sweep = {"name": name, "folder": str(project.SWEEPS / name), "trials": []}
            return {"ansible_facts": {"sweep_found": found_sweep, "cluster": planning.hosts(self.task_vars), "run_options": options}}
        return self._measuring(options)

    def _measuring(self, options: dict[str, Any]) -> dict[str, Any]:
        children.refuse_questions()
        if not self.check_mode:
            with alone():
                pass
        hosts = planning.hosts(self.task_vars)
        choice = self._choice(options, hosts)
        options = with_choice(options, choice)
        given = command_line.inventory()
        inventory = given.parent.name if given.is_file() else given.name
        name = str(options.get("sweep", default_name(str(options.get("config", "lecture_cnn")), inventory)))
        check_name("sweep", name, sweep.LONGEST_NAME)
        folder = project.SWEEPS / name
        config = resolve(options, folder)
        wanted = wants(options, len(hosts))
        record_before = check_same(folder, name, config, hosts, options)
        plan = self._plan(name, config, hosts, max(wanted.workers), options.get("remeasure", False))
        record = {
            **new_record(name, options, config, hosts),
            **record_before,
            "gradient_bytes": bytes_per_step(plan["parameters"]["trainable"]),
            "train_images": plan["counts"]["train_images"],
            "dataset": plan["dataset"]["digest"],
            "code": plan["code"],
        }
        check_same_facts(name, record_before, record)
        trials = sweep.order(wanted, record["seed"])
        left = remaining(trials, timings.read(folder / timings.FILE))
        if not self.check_mode:
            write_text(folder / "config.yml", configs.dump(config))
            write_json(folder / SUMMARY, record)
        found_sweep = {**record, "folder": str(folder), "trials": [asdict(trial) for trial in left]}
        shown = sweep_text.plan(found_sweep, wanted, trials, left, plan, project.relative(folder))
        shown += f"\n  configuration {choice['why']}" if choice else ""
        looks = boolean("preflight", options.get("preflight", True))
        unknown = {host["name"] for host in plan["hosts"]} - set(record.get("timed", {}))
        facts = {"sweep_found": found_sweep, "plan": plan, "cluster": plan["hosts"], "run_options": options}
        facts["sweep_times_steps"] = bool(left and looks and unknown)
        return {"show": shown, "ansible_facts": facts, **({"if_interrupted": CONTINUES} if left and not self.check_mode else {})}

    def _choice(self, options: dict[str, Any], hosts: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The configuration that fits the dataset, as in a training without one; a sweep with measurements keeps its own."""
        measured = "sweep" in options and timings.any_measured(project.SWEEPS / str(options["sweep"]) / timings.FILE)
        if "config" in options or "dataset" not in options or measured:
            return None
        asked = {"run": "choice", "dataset": options["dataset"]}
        plan = planning.make(asked, hosts[:1], "sweeps", 1, self.arguments["packs"], not self.check_mode)
        return dict(plan["choice"])

    def _plan(self, name: str, config: Config, hosts: list[dict[str, Any]], workers: int, remeasure: Any) -> dict[str, Any]:
        """The warm-up's plan: a run like any trial, on all hosts that the trials use."""
        folder, run = f"{project.TRIALS}/{name}", f"{name}.{sweep.WARM_UP}"
        if self.check_mode:
            run += ".check"
        else:
            # An interrupted warm-up's files would make this one its continuation.
            shutil.rmtree(project.runs_folder(folder) / run, ignore_errors=True)
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "config.yml"
            path.write_text(configs.dump(config), encoding="utf-8")
            options = {"run": run, "config": str(path), "workers": str(workers), "remeasure": remeasure}
            return planning.make(options, hosts, folder, len(hosts), self.arguments["packs"], not self.check_mode)


def with_choice(options: dict[str, Any], choice: dict[str, Any] | None) -> dict[str, Any]:
    """The typed options, with the configuration that fits the dataset; the sweep itself sets a trial's length."""
    if choice is None:
        return options
    fitting = {key: value for key, value in choice["overrides"].items() if key not in (*FREE, *FIXED)}
    given = ",".join([*(f"{key}={json.dumps(value)}" for key, value in fitting.items()), str(options.get("set", ""))])
    return {**options, "config": choice["config"], "set": given.rstrip(",")}


def resolve(options: dict[str, Any], folder: Path) -> Config:
    """The configuration of every trial: an epoch is the whole training set, whatever the number of workers.

    An existing sweep's configuration, unless another is requested, with the options typed now.
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
    if own.is_file() and "config" not in options and timings.any_measured(folder / timings.FILE):
        raw = configs.load(own)
    else:
        # Trials are short: a larger share of their steps is profiled than in a long training, at a cost well below 1%.
        raw = configs.override(
            configs.load(configs.find(str(options.get("config", "lecture_cnn")))), {"telemetry.profile_every": PROFILE_EVERY}
        )
    return configs.build(configs.override(raw, given | dict.fromkeys(FIXED)))


def wants(options: dict[str, Any], hosts: int) -> Wanted:
    """What to measure."""
    every = sweep.numbers("checkpoint_every", options.get("checkpoint_every", "0"), least=0)
    # The cost of saved states is a separate question: all hosts by default.
    default = f"1-{hosts}" if "checkpoint_every" not in options else str(hosts)
    workers = sweep.numbers("workers", options.get("workers", default))
    if max(workers) > hosts:
        raise ConfigError(f"workers={options.get('workers')}: the inventory has {hosts} hosts; add hosts or ask for fewer")
    repeats, epochs = (integer(key, options.get(key, 3)) for key in ("repeats", "epochs"))
    scaling = str(options.get("scaling", WEAK))
    if scaling not in (WEAK, STRONG):
        raise ConfigError(f"scaling={scaling}: expected weak (every worker keeps its batch) or strong (the global batch stays)")
    return Wanted(workers, repeats, epochs, every, scaling)


def new_record(name: str, options: dict[str, Any], config: Config, hosts: list[dict[str, Any]]) -> dict[str, Any]:
    """The initial content of a sweep's summary.json."""
    seed = integer("seed", options["seed"]) if "seed" in options else 1 + secrets.randbelow(SEEDS)
    return {
        "name": name,
        "config_name": Path(str(options.get("config", "lecture_cnn"))).stem,
        "seed": seed,
        "batch_size": config.train.batch_size,
        "global_batch": config.train.global_batch or config.train.batch_size * len(hosts),
        "hosts": [cluster.label(host) for host in hosts],
    }


def check_same(folder: Path, name: str, config: Config, hosts: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    """The record of an existing sweep."""
    path = folder / SUMMARY
    if not path.is_file() or not timings.any_measured(folder / timings.FILE):
        return {}
    record_before = dict(read_json(path))
    old = configs.to_dict(configs.build(configs.load(folder / "config.yml")))
    changed = [key for key in configs.differences(old, configs.to_dict(config)) if key not in FREE]
    labels = [cluster.label(host) for host in hosts]
    changed += other_hosts(record_before["hosts"], labels)
    if config.train.global_batch and options.get("scaling") == STRONG and config.train.global_batch != record_before["global_batch"]:
        changed.append("train.global_batch")
    if "seed" in options and integer("seed", options["seed"]) != record_before["seed"]:
        changed.append("seed")
    refuse_other("sweep", name, changed)
    # The order of the remaining trials follows the seed recorded first.
    return record_before if len(record_before["hosts"]) >= len(labels) else {**record_before, "hosts": labels}


def check_same_facts(name: str, record_before: dict[str, Any], record: dict[str, Any]) -> None:
    """Refuse to mix measurements of another trainer or other images."""
    words = {"dataset": "dataset", "code": "trainer (its code has changed)"}
    changed = [word for key, word in words.items() if record_before.get(key) and record[key] and record_before[key] != record[key]]
    refuse_other("sweep", name, changed)


def default_name(config: str, inventory: str) -> str:
    """`task_cnn-lab`: the same command continues the same sweep."""
    stem = "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in f"{Path(config).stem}-{inventory}".lower())
    return stem.strip("-_")[:32] or "sweep"


def watts(options: dict[str, Any]) -> float | None:
    """`watts_per_node`, or None."""
    if "watts_per_node" not in options:
        return None
    try:
        value = float(options["watts_per_node"])
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"watts_per_node={options['watts_per_node']}: expected the watts that one host takes while it trains, as in 6.4")
    return value
