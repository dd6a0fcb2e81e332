"""The variables that a user gives with `-e`, and the commands that take them.

Ansible silently accepts any name; a misspelt one must not pass.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest

STATES = ("present", "absent")
COMMANDS = {
    command: names.split()
    for command, names in {
        "train": "run config model weights callbacks dataset workers epochs set quick detach queue time_limit allow_bad_images "
        "preflight evaluate timeline show_config remeasure script args outputs",
        "sweep": "sweep vary trials config model weights callbacks dataset workers repeats epochs scaling checkpoint_every set seed "
        "measure watts_per_node meter allow_bad_images preflight remeasure",
        "trial": "run sweep config workers epochs set remeasure",
        "doctor": "config model dataset workers set selftest allow_bad_images remeasure",
        "evaluate": "run epoch image",
        "predict": "run epoch input output overwrite workers",
        "export": "run epoch",
        "serve": "run state serve_port serve_address serve_memory serve_seconds",
        "report": "run sweep evaluate set",
        "status": "run collect timeline",
        "logs": "run lines follow role",
        "stop": "run",
        "tensorboard": "run state tensorboard_port",
        "provision": "state firewall requirements",
        "lab": "nodes cpus memory link state image",
        "benchmarks/peers": "peers workers links systems rounds steps warm_up seconds batch threads seed peers_path state",
        "playbooks/slurm": "run config model callbacks dataset workers epochs set quick allow_bad_images detach time partition remeasure",
        "playbooks/lab_slurm": "state",
        "playbooks/delete_run": "run confirm",
        "playbooks/visualize": "dataset config model set allow_bad_images images step",
        "playbooks/dataset": "source path out digest",
        "benchmarks/accuracy": "accuracy configs methods seeds epochs workers dataset set",
        "benchmarks/chaos": "chaos rounds seed faults spacing config model dataset set cpus",
        "benchmarks/loader": "dataset loaders passes limit config set",
        "benchmarks/inference": "run config set devices batches passes",
    }.items()
}
"""Variables of each command, in the order of its messages; docs/reference/variables.md has their meanings."""


INSTEAD = {"hosts": "workers"}
"""Names that Ansible reserves, and warns of, and what they are called here."""


def check_variables(command: str, given: Mapping[str, Any], inventory: Iterable[str]) -> dict[str, Any]:
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
        meant = _as_setting(command, name) or nearest(INSTEAD.get(name, name), taken)
        raise ConfigError(f"-e {name}={given[name]}: {command}.yml takes no such variable{meant}; it takes: {', '.join(taken)}.{where}")
    return {name: value for name, value in given.items() if name in taken}


def _as_setting(command: str, name: str) -> str:
    """A hint ` (did you mean -e set=KEY=VALUE?)` when a name is a key that the command's `set` takes, else an empty string."""
    from control.common import configurations

    taken, last = COMMANDS[command], name.rpartition(".")[2]
    if "set" not in taken or {last, f"{last}s", last.removesuffix("s")} & set(taken):
        return ""
    keys = [key for key in configurations.named(name) if command != "report" or key.startswith("report.")]
    return f" (did you mean -e set={keys[0]}=VALUE?)" if len(keys) == 1 else ""


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


def integer(name: str, value: Any, least: int = 1) -> int:
    """An operator variable as a whole number from `least`.

    Raises:
        ConfigError: it is not one.
    """
    text = str(value)
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{name}={text}: expected a whole number from {least}")
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
