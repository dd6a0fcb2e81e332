"""The variables that a user gives with `-e`, and the commands that take them.

Ansible silently accepts any name; a misspelt one must not pass.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from trainer.config import nearest
from trainer.errors import ConfigError

STATES = ("present", "absent")
CONFIGURATION = {
    "config": "name of a configuration, or a path",
    "model": "a model of your own, as FILE.py:FUNCTION",
    "dataset": "folder, file or source name",
}
COMMANDS: dict[str, dict[str, str]] = {
    "train": {
        "run": "run name; an existing one continues where it stopped",
        **CONFIGURATION,
        "workers": "how many hosts train, in inventory order",
        "epochs": "how many in all",
        "set": "overrides, as in a.b=1,c=[1,2]",
        "quick": "ten steps in all, to see that everything works",
        "detach": "return once training is under way",
        "allow_bad_images": "leave unreadable images out",
        "preflight": "false: start without looking at the hosts first",
        "evaluate": "true: loss and accuracy on the test images at the end",
        "show_config": "true: only print the whole configuration that would be used",
        "remeasure": "true: measure again what auto chooses, and keep it for these hosts",
    },
    "sweep": {
        "sweep": "the sweep's name; an existing one is continued",
        **CONFIGURATION,
        "workers": "numbers of workers to measure, as in 3 or 1,3,5 or 1-5; default: 1 to all",
        "repeats": "how often each is measured; default: 3",
        "epochs": "epochs of a trial; default: 3",
        "scaling": "weak: every worker keeps its batch; strong: the global batch stays",
        "checkpoint_every": "steps between saved states to compare, as in 50,200,1000",
        "set": "overrides, as in a.b=1,c=[1,2]",
        "seed": "of the order of the trials; default: drawn, and recorded",
        "measure": "false: only show the analysis of the measurements again",
        "watts_per_node": "watts of a host while it trains, for joules per epoch",
        "meter": "address of a metering plug that all hosts draw from, for measured joules per epoch",
        "allow_bad_images": "leave unreadable images out",
        "preflight": "false: start without looking at the hosts first",
        "remeasure": "true: measure again what auto chooses, and keep it for these hosts",
    },
    "trial": dict.fromkeys(("run", "sweep", "config", "workers", "epochs", "set", "remeasure"), "of sweep.yml's own trials"),
    "doctor": {
        **CONFIGURATION,
        "workers": "how many hosts, in inventory order; default: all",
        "set": "overrides, as in a.b=1,c=[1,2]",
        "selftest": "false: no two-step training at the end",
        "allow_bad_images": "leave unreadable images out",
        "remeasure": "true: measure again what auto chooses, and keep it for these hosts",
    },
    "evaluate": {
        "run": "run name; default: the latest",
        "epoch": "12, or 1,12,30, 2-5, first, best, last, all",
        "image": "predict this one image instead",
    },
    "report": {
        "run": "run name, or several to compare, as in A,B,C; default: the latest",
        "sweep": "a sweep whose analysis belongs to it; default: the one of the run's name",
        "evaluate": "false: leave missing test results out instead of making them",
    },
    "status": {"run": "run name; default: the latest"},
    "logs": {
        "run": "run name; default: the latest",
        "lines": "how many of each worker's last lines",
        "follow": "true: go on with new lines until the run ends, or Ctrl-C",
    },
    "stop": {"run": "run name; default: the latest"},
    "tensorboard": {
        "run": "show this run only; default: all",
        "state": "present or absent",
        "tensorboard_port": "port on the loopback address",
    },
    "provision": {
        "state": "present or absent",
        "firewall": "whether worker ports are closed to all but the cluster: true or false",
    },
    "lab": {
        "nodes": "how many; default: 5",
        "cpus": "cores of each; default: this machine's, evenly",
        "memory": "limit of each, as in 3g",
        "link": "rate of each one's network link, as in 1gbit; none: no limit",
        "state": "present or absent",
        "image": "absent: remove the image, too",
    },
    "benchmarks/peers": {
        "peers": "name of the results' folder; an existing one is continued",
        "workers": "numbers of workers to measure, as in 3 or 1,3,5 or 1-5; default: 1 to all",
        "links": "rates of the hosts' links, as in none,1gbit,100mbit (the lab only); default there: these three",
        "systems": "which to measure, as in lockstep,ideal,ddp; default: all but some variants of lockstep",
        "rounds": "how often each is measured; default: 3",
        "steps": "steps to time in a cell, at most; default: 40",
        "warm_up": "steps before; default: 16",
        "seconds": "the timed steps become fewer when they would take longer; default: 20",
        "batch": "images per step on each worker; default: 64",
        "threads": "threads of each system on a host; default: the host's whole cores, at least 1",
        "seed": "of the order of the cells; default: 1",
        "peers_path": "folder on the hosts for the peers' environments; default: peers in worker_root",
        "state": "absent: remove what the benchmark left on the hosts",
    },
    "playbooks/slurm": {
        "run": "run name; an existing one continues where it stopped",
        **CONFIGURATION,
        "workers": "how many nodes Slurm is asked for; default: as many as the inventory has",
        "epochs": "how many in all",
        "set": "overrides, as in a.b=1,c=[1,2]",
        "quick": "ten steps in all, to see that everything works",
        "allow_bad_images": "leave unreadable images out",
        "detach": "return once the job is submitted",
        "time": "the job's limit, as Slurm takes it: 1:30:00; default: the partition's",
        "partition": "Slurm's partition; default: its own",
        "remeasure": "true: measure again what auto chooses, and keep it for these hosts",
    },
    "playbooks/lab_slurm": {"state": "present or absent"},
    "playbooks/delete_run": {"run": "run name"},
    "playbooks/visualize": {
        "dataset": "folder, file or source name; default: the configuration's own",
        "config": "configuration whose image size, batch and variation are used; default: what fits the dataset",
        "set": "overrides, as in augment.rotate=5,augment.shift=0.1,augment.scale=[0.5,2]",
        "images": "how many images at most; default: 32",
        "step": "of which step of the first epoch; default: 1",
    },
    "playbooks/dataset": {
        "source": "what it is: cifar10",
        "path": "archive or folder to read",
        "out": "folder to write; default: datasets/<source>",
        "digest": "of the archive, as in md5:HEX or sha256:HEX, or any; default: the official one's",
    },
    "benchmarks/accuracy": {
        "accuracy": "name of the results' folder; an existing one is continued",
        "configs": "configurations to train; default: task_cnn,deep_cnn",
        "methods": "how gradients are sent, as in packed,powersgd,powersgd-4; default: packed,powersgd",
        "seeds": "seeds of weights and order, as in 1-5; default: 1-3",
        "epochs": "of each training; default: 10",
        "workers": "number of hosts, taken in inventory order; default: all",
        "dataset": "folder, file or source name; default: the configuration's own",
        "set": "overrides, as in train.batch_size=32",
    },
    "benchmarks/loader": {
        "dataset": "folder with train/<class>/ and test/<class>/; default: one of made-up pictures",
        "loaders": "numbers of loaders to time, as in 3 or 1,2,4 or 1-4; default: 1-4",
        "passes": "how many of each; default: 5",
        "limit": "images of a pass; default: all (4,000 made-up ones)",
        "config": "configuration whose image size and batch are used; default: task_cnn",
        "set": "overrides, as in data.image_size=[224,224,3]",
    },
    "benchmarks/inference": {
        "run": "run whose last snapshot predicts; default: the latest",
        "config": "a new model of this configuration instead",
        "set": "overrides of that configuration, as in model.filters=64",
        "devices": "numbers of devices, as in 1,2 or 1-4; default: 1,2",
        "batches": "batch sizes, as in 32,128,512 (the default)",
        "passes": "how many of each; default: 5",
    },
}


def check(command: str, given: Mapping[str, Any], inventory: Iterable[str]) -> dict[str, Any]:
    """The operator variables among those given with `-e`.

    Args:
        command: name of the command, without `.yml`.
        given: every extra variable.
        inventory: names that the inventory defines, which `-e` may override.

    Raises:
        ConfigError: a name that this command does not take, with the nearest one that it does.
    """
    taken, overridable = COMMANDS[command], set(inventory)
    if "_raw_params" in given:
        raise ConfigError(
            f"-e ... {given['_raw_params']}: Ansible splits a value at spaces; "
            "put quotes inside the quotes, as in -e 'dataset=\"my pictures\"'"
        )
    for name in given:
        if name in taken or name in overridable or name.startswith("ansible_"):
            continue
        others = _owners(name)
        where = f" It belongs to: {', '.join(f'{other}.yml' for other in others)}." if others else ""
        raise ConfigError(
            f"-e {name}={given[name]}: {command}.yml takes no such variable{nearest(name, taken)}; it takes: {', '.join(taken)}.{where}"
        )
    return {name: value for name, value in given.items() if name in taken}


def _owners(name: str) -> list[str]:
    """Commands that take a variable; benchmarks only if no other does."""
    commands = sorted(command for command, names in COMMANDS.items() if name in names and command != "trial")
    return [command for command in commands if "/" not in command] or commands


def check_state(options: Mapping[str, Any], name: str = "state") -> str:
    """A variable that is present (the default) or absent.

    Raises:
        ConfigError: it is neither.
    """
    state = str(options.get(name, "present"))
    if state not in STATES:
        raise ConfigError(f"{name}={state}: expected present or absent{nearest(state, STATES)}")
    return state


def integer(name: str, value: Any) -> int:
    """An operator variable as a whole number from 1.

    Raises:
        ConfigError: it is not one.
    """
    text = str(value)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name}={text}: expected a whole number from 1")
    return int(text)


def boolean(name: str, value: Any) -> bool:
    """An operator variable as true or false.

    Raises:
        ConfigError: it is neither.
    """
    text = str(value).lower()
    if text not in ("true", "false", "yes", "no", "1", "0", "on", "off"):
        raise ConfigError(f"{name}={value}: expected true or false")
    return text in ("true", "yes", "1", "on")
