"""Make and show the plan of `sweep.yml`: trials, their order and hosts, and the trials that are already measured."""

import json
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from control.campaign import timings
from control.campaign.store import SUMMARY, alone, check_name, other_hosts, refuse_other, remaining
from control.campaign.timings import STRONG, WEAK, Trial
from control.common import child_playbooks, command_line, configurations, host_names, project, text
from control.common.operator_variables import boolean, integer
from control.common.plan import Plan
from control.common.task import Task
from control.runs.hosts import inventory_hosts
from control.runs.planning import plan_command
from control.runs.planning.host_choice import check_gpus, check_roles
from control.runs.planning.plan_request import Inventory, OperatorRequest
from control.runs.results import metric_text
from control.runs.results.expected_speed import bytes_per_step
from control.sweep.scaling import design, forecast, meter
from control.sweep.scaling.design import Wanted
from control.sweep.settings import settings_plan, trial_settings
from trainer.common.errors import ConfigError
from trainer.common.files import read_json, write_json, write_text
from trainer.config.schema import Config
from trainer.data.spec import noun
from trainer.rundir.launch_record import Host

FREE = ("train.epochs", "train.global_batch", "checkpoint.every_steps")
"""Keys that may differ between trials of one sweep: columns of timings.csv."""
FIXED = {"train.steps": "data.limit_train", "train.steps_per_epoch": "data.limit_train", "train.time_limit": "data.limit_train"}
"""Forbidden keys with their replacements, which shorten an epoch fairly: it is the whole training set at any number of workers."""
SEEDS = 1 << 31
LATER = {"diagnosis": {"network": {}}, "published": {}, "sweep_times_steps": False, "sweep_distributes": False}
"""Initial values of facts of later stages, including whether these have something to do."""
PROFILE_EVERY = 20
CONTINUES = "What was measured is kept. The same command continues the sweep."


def plan(task: Task) -> dict[str, Any]:
    """Check and resolve the options, and show the plan; with `measure=false`, only find the sweep.

    Returns the facts `sweep_found`, `plan`, `cluster` (the hosts of the largest trial, or of all at once) and `run_options`.
    """
    options = command_line.operator_options("sweep", task.task_vars)
    boolean("preflight", options.get("preflight", True))
    watts(options)
    if "meter" in options:
        meter.watts(str(options["meter"]))
    if not boolean("measure", options.get("measure", True)):
        names = project.sweeps()
        if not names and "sweep" not in options:
            raise ConfigError("there is no sweep yet; measure one with: ansible-playbook sweep.yml")
        name = design.find(names, str(options["sweep"])) if "sweep" in options else names[-1]
        found_sweep = {"name": name, "folder": str(project.SWEEPS / name), "trials": []}
        return {
            "ansible_facts": {
                **LATER,
                "sweep_found": found_sweep,
                "cluster": plan_command.hosts(task.task_vars),
                "run_options": options,
            }
        }
    return _measuring(task, options)


def _measuring(task: Task, options: dict[str, Any]) -> dict[str, Any]:
    child_playbooks.refuse_questions()
    if not task.check_mode:
        with alone():
            pass
    hosts = plan_command.hosts(task.task_vars)
    options = settings_plan.continued(options, _asked_before(options))
    return _settings(task, options, hosts) if "vary" in options else _workers(task, options, hosts)


def _workers(task: Task, options: dict[str, Any], hosts: list[Host]) -> dict[str, Any]:
    """Plan a sweep over numbers of workers."""
    settings_plan.refuse_without_vary(options)
    choice = _choice(task, options, hosts)
    options = _with_choice(options, choice)
    folder = _named_folder(options, _default_name(str(options.get("config", "lecture_cnn")), _inventory_name()))
    settings_plan.refuse_other_kind(folder, varies=False)
    name = folder.name
    config = _resolve(options, folder)
    wanted = _wants(options, len(hosts))
    record_before = _check_same(folder, name, config, hosts, options)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "config.yml"
        path.write_text(configurations.dump(config), encoding="utf-8")
        given = {"config": str(path), "workers": str(max(wanted.workers)), "remeasure": options.get("remeasure", False)}
        plan = _plan(task, name, given, hosts)
    record = {
        **_new_record(name, options, config, hosts),
        **record_before,
        "gradient_bytes": bytes_per_step(plan.parameters["trainable"]),
        "train_images": plan.counts["train_images"],
        "dataset": plan.dataset["digest"],
        "called": noun(plan.dataset.get("spec")),
        "code": plan.code,
    }
    _check_same_facts(name, record_before, record)
    trials = wanted.order(record["seed"])
    rows = timings.read(folder / timings.FILE)
    left = remaining(trials, rows)
    if not task.check_mode:
        write_text(folder / "config.yml", configurations.dump(config))
        write_json(folder / SUMMARY, record)
    found_sweep = {**record, "folder": str(folder), "trials": [asdict(trial) for trial in left]}
    shown = _shown(found_sweep, wanted, trials, left, plan, project.relative(folder), forecast.before(left, rows, record, plan))
    shown += f"\n  configuration {choice['why']}" if choice and choice["why"] else ""
    times = bool(left) and boolean("preflight", options.get("preflight", True)) and _step_alone_counts(wanted, record["hosts"])
    facts = {"sweep_found": found_sweep, "plan": plan, "cluster": plan.hosts, "run_options": options}
    return _planned(task, shown, {**facts, "sweep_times_steps": times, "sweep_distributes": times})


def _shown(
    record: dict[str, Any], wanted: Wanted, trials: Sequence[Trial], left: Sequence[Trial], run_plan: Plan, folder: str, time: str
) -> str:
    """The plan of a sweep over numbers of workers as a block of lines; `time`: text on the expected duration."""
    counts, dataset = run_plan.counts, run_plan.dataset
    measured_trials = len(trials) - len(left)
    kept = f", {measured_trials} of them measured already" if measured_trials else ""
    every = "" if wanted.checkpoint_every == (0,) else f" x state saved every {_list(wanted.checkpoint_every)} steps"
    shape = f"{_list(wanted.workers)} workers x {text.count(wanted.repeats, 'repeat')} x {text.count(wanted.epochs, 'epoch')}{every}"
    called = record["called"]
    strong = f"strong: {record['global_batch']} {called}s per step over all workers"
    weak = f"weak: {record['batch_size']} {called}s per step on every worker"
    pairs = [
        ("sweep", f"{record['name']} (configuration {record['config_name']})"),
        ("trials", f"{len(trials)}: {shape}{kept}"),
        ("scaling", strong if wanted.scaling == STRONG else weak),
        ("order", f"random in blocks of one repeat, seed {record['seed']}: {_order(left)}"),
        ("hosts", ", ".join(f"{host.label}:{host.port}" for host in run_plan.hosts)),
        ("model", f"{metric_text.model_name(run_plan.config['model'])}, {run_plan.parameters['total']:,} parameters"),
        ("dataset", f"{dataset['name']}: an epoch is {counts['train_images']:,} training {called}s at every number of workers"),
        ("time", time),
        ("results", folder),
    ]
    return text.fields(pairs)


def _order(left: Sequence[Trial]) -> str:
    shown = " ".join(str(trial.workers) for trial in left[:30])
    return f"{shown}{' ...' if len(left) > 30 else ''} workers" if left else "nothing is left to measure"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _step_alone_counts(wanted: Wanted, labels: Sequence[str]) -> bool:
    """Return whether a host's own step, timed alone, represents its step beside other hosts.

    It does not on one machine, whose workers share cores, or with strong scaling, where each number of workers has another share of a step.
    """
    return wanted.scaling == WEAK and not host_names.on_one_machine(labels)


def _settings(task: Task, options: dict[str, Any], hosts: list[Host]) -> dict[str, Any]:
    """Plan a sweep over settings."""
    wanted = settings_plan.Wanted.of(options, [host.name for host in hosts])
    folder = _named_folder(options, _default_name(wanted.trains, "-".join([_inventory_name(), *wanted.names])))
    settings_plan.refuse_other_kind(folder, varies=True)
    rows, before = settings_plan.before(folder)
    seed = integer("seed", options["seed"]) if "seed" in options else before.get("seed") or 1 + secrets.randbelow(SEEDS)
    combinations = trial_settings.combinations(wanted.space, wanted.drawn, seed)
    used = _usable([host for host in hosts if host.name not in wanted.idle])
    first = settings_plan.first(options, combinations[0])
    plan = _plan(task, folder.name, {**first, "workers": str(wanted.workers)}, hosts)
    trials = wanted.trials(folder.name, yaml.safe_load(plan.asked_yaml), combinations)
    hosts_now = [host.label for host in used]
    record = {**wanted.record(folder.name, options, plan), "seed": seed, "hosts": hosts_now}
    if any(row.measured for row in rows):
        settings_plan.refuse_changed(folder, before, record, next(iter(trials.values())))
        _check_same_facts(folder.name, before, record)
        record["varied"] = before["varied"]
    if not task.check_mode:
        settings_plan.write_sweep(folder, {**before, **record}, trials)
    left = remaining(list(trials), rows)
    time = settings_plan.estimate(left, rows, plan, len(wanted.groups))
    most = None if task.check_mode else settings_plan.MOST_SHOWN
    shown = wanted.shown(record, trials, rows, plan, project.relative(folder), time, most)
    # The user's values are not templates.
    found_sweep = {key: value for key, value in record.items() if key != "asked"} | {"folder": str(folder), "trials": left}
    facts = {
        "sweep_found": found_sweep,
        "plan": replace(plan, hosts=used),
        "cluster": used,
        "run_options": options,
    }
    return _planned(task, shown, {**facts, "sweep_times_steps": False, "sweep_distributes": bool(left)})


def _planned(task: Task, shown: str, facts: dict[str, Any]) -> dict[str, Any]:
    goes_on = bool(facts["sweep_found"]["trials"]) and not task.check_mode
    return {"show": shown, "ansible_facts": LATER | facts, **({"if_interrupted": CONTINUES} if goes_on else {})}


def _choice(task: Task, options: dict[str, Any], hosts: list[Host]) -> dict[str, Any] | None:
    """The configuration that fits the dataset, as for a training without one; a sweep with measurements keeps its configuration."""
    measured = "sweep" in options and timings.any_measured(project.SWEEPS / str(options["sweep"]) / timings.FILE)
    if "config" in options or "dataset" not in options or measured:
        return None
    asked: dict[str, Any] = {name: options[name] for name in ("dataset", "model", "callbacks", "set") if name in options}
    asked["run"] = "choice"
    plan = plan_command.make_plan(
        OperatorRequest.of(asked), Inventory(hosts=hosts[:1]), "sweeps", 1, task.arguments["packs"], not task.check_mode
    )
    return plan.choice


def _plan(task: Task, name: str, options: dict[str, Any], hosts: list[Host]) -> Plan:
    """The plan of the warm-up: a run like a trial, with these options."""
    folder, run = f"{project.TRIALS}/{name}", f"{name}.{design.WARM_UP}"
    if task.check_mode:
        run += ".check"
    else:
        # Files of an interrupted warm-up would make this one its continuation.
        shutil.rmtree(project.runs_folder(folder) / run, ignore_errors=True)
    asked = OperatorRequest.of({**options, "run": run})
    return plan_command.make_plan(asked, Inventory(hosts=hosts), folder, len(hosts), task.arguments["packs"], not task.check_mode)


def _usable(hosts: list[Host]) -> list[Host]:
    """Hosts of which any may train with any other."""
    check_roles(hosts)
    check_gpus(hosts)
    inventory_hosts.check_hosts(hosts)
    return hosts


def _asked_before(options: dict[str, Any]) -> dict[str, Any]:
    """Operator variables of an existing sweep over settings; empty for other sweeps."""
    if "sweep" not in options:
        return {}
    check_name("sweep", str(options["sweep"]), design.LONGEST_NAME)
    path = project.SWEEPS / str(options["sweep"]) / SUMMARY
    return dict(read_json(path).get("asked", {})) if path.is_file() else {}


def _named_folder(options: dict[str, Any], default: str) -> Path:
    """The sweep's folder.

    Raises:
        ConfigError: its name could leave its parent or reach a shell.
    """
    name = str(options.get("sweep", default))
    check_name("sweep", name, design.LONGEST_NAME)
    return project.SWEEPS / name


def _inventory_name() -> str:
    """Name of the inventory's folder."""
    given = command_line.inventory()
    return given.parent.name if given.is_file() else given.name


def _with_choice(options: dict[str, Any], choice: dict[str, Any] | None) -> dict[str, Any]:
    """The typed options with the configuration that fits the dataset; the sweep itself sets a trial's length."""
    if choice is None:
        return options
    fitting = {key: value for key, value in choice["overrides"].items() if key not in (*FREE, *FIXED)}
    given = ",".join([*(f"{key}={json.dumps(value)}" for key, value in fitting.items()), str(options.get("set", ""))])
    return {**options, "config": choice["config"], "set": given.rstrip(",")}


def _resolve(options: dict[str, Any], folder: Path) -> Config:
    """The configuration of every trial, whose epoch is the whole training set at any number of workers.

    It is an existing sweep's configuration, unless another is requested, with the options typed now.
    """
    given = OperatorRequest.of({"epochs": "3", **options} | {"workers": None}).overrides
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
        raw = configurations.load(own)
    else:
        # Trials are short: a larger share of their steps is profiled than in a long training, at a cost well below 1%.
        raw = configurations.override(
            configurations.load(configurations.find(str(options.get("config", "lecture_cnn")))), {"telemetry.profile_every": PROFILE_EVERY}
        )
    config = configurations.build(configurations.override(raw, given | dict.fromkeys(FIXED)))
    if config.strategy.asynchronous:
        raise ConfigError(
            f"strategy.name={config.strategy.name}: a sweep over numbers of workers measures and models synchronous steps. Fix: leave it "
            "out, or try settings side by side: -e 'vary=\"...\"' (docs/how-to/sweeps.md)"
        )
    return config


def _wants(options: dict[str, Any], hosts: int) -> Wanted:
    """Request of a sweep over workers."""
    every = design.numbers("checkpoint_every", options.get("checkpoint_every", "0"), least=0)
    # The cost of saved states is a separate question: all hosts by default.
    default = f"1-{hosts}" if "checkpoint_every" not in options else str(hosts)
    workers = design.numbers("workers", options.get("workers", default))
    if max(workers) > hosts:
        raise ConfigError(f"workers={options.get('workers')}: the inventory has {hosts} hosts; add hosts or ask for fewer")
    repeats, epochs = (integer(key, options.get(key, 3)) for key in ("repeats", "epochs"))
    scaling = str(options.get("scaling", WEAK))
    if scaling not in (WEAK, STRONG):
        raise ConfigError(f"scaling={scaling}: expected weak (every worker keeps its batch) or strong (the global batch stays)")
    return Wanted(workers, repeats, epochs, every, scaling)


def _new_record(name: str, options: dict[str, Any], config: Config, hosts: list[Host]) -> dict[str, Any]:
    """The initial content of a sweep's summary.json."""
    seed = integer("seed", options["seed"]) if "seed" in options else 1 + secrets.randbelow(SEEDS)
    return {
        "name": name,
        "config_name": Path(str(options.get("config", "lecture_cnn"))).stem,
        "seed": seed,
        "batch_size": config.train.batch_size,
        "global_batch": config.train.global_batch or config.train.batch_size * len(hosts),
        "hosts": [host.label for host in hosts],
    }


def _check_same(folder: Path, name: str, config: Config, hosts: list[Host], options: dict[str, Any]) -> dict[str, Any]:
    """The record of an existing sweep."""
    path = folder / SUMMARY
    if not path.is_file() or not timings.any_measured(folder / timings.FILE):
        return {}
    record_before = dict(read_json(path))
    old = configurations.to_dict(configurations.build(configurations.load(folder / "config.yml")))
    changed = [key for key in configurations.differences(old, configurations.to_dict(config)) if key not in FREE]
    labels = [host.label for host in hosts]
    changed += other_hosts(record_before["hosts"], labels)
    if config.train.global_batch and options.get("scaling") == STRONG and config.train.global_batch != record_before["global_batch"]:
        changed.append("train.global_batch")
    if "seed" in options and integer("seed", options["seed"]) != record_before["seed"]:
        changed.append("seed")
    refuse_other("sweep", name, changed)
    # The order of the remaining trials follows the seed recorded first.
    return record_before if len(record_before["hosts"]) >= len(labels) else {**record_before, "hosts": labels}


def _check_same_facts(name: str, record_before: dict[str, Any], record: dict[str, Any]) -> None:
    """Refuse to mix measurements of another trainer or other data."""
    words = {"dataset": "dataset", "code": "trainer (its code has changed)"}
    changed = [word for key, word in words.items() if record_before.get(key) and record[key] and record_before[key] != record[key]]
    refuse_other("sweep", name, changed)


def _default_name(config: str, inventory: str) -> str:
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
