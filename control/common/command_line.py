"""The user's command: operator variables, inventory, terminal."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from ansible import context
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.splitter import parse_kv, split_args
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars

from control.common import operator_variables, project
from trainer.common.errors import LockstepError

COMMAND = re.compile(r"ansible-playbook (?=(playbooks/|benchmarks/)?\w+\.yml)(?!lab\.yml)")
INVENTORY = {
    "worker_root",
    "worker_address",
    "worker_port",
    "worker_direct_port",
    "worker_environment",
    "worker_role",
    "dfs_path",
    "gpus",
    "control_packs",
    "default_workers",
    "report_author",
    "report_title",
}


ADDED_UP = {"set": ",", "vary": ";", "outputs": ",", "args": " "}
"""Lists, and what is between their parts: where one is given more than once, all parts count."""


def extra_variables() -> dict[str, Any]:
    """All variables given with `-e`, files included."""
    variables = dict(load_extra_vars(DataLoader()))
    for name, values in _repeated().items():
        if name in ADDED_UP:
            variables[name] = ADDED_UP[name].join(values)
    return variables


def _repeated() -> dict[str, list[str]]:
    """Values, in order, of each variable that is given with several ones: of those, Ansible keeps the last."""
    values: dict[str, dict[str, None]] = {}
    for one in _given():
        for name, value in one.items():
            values.setdefault(name, {})[str(value)] = None
    return {name: list(several) for name, several in values.items() if len(several) > 1}


def _given() -> Iterator[dict[str, Any]]:
    """Variables as they were typed, one after another."""
    loader = DataLoader()
    for text in filter(None, map(str, context.CLIARGS.get("extra_vars") or () if context.CLIARGS else ())):
        if text.startswith("@"):
            yield loader.load_from_file(text[1:])
        elif text.startswith(("[", "{")):
            yield loader.load(text)
        else:
            yield from (parse_kv(part) for part in split_args(text))


def inventory() -> Path:
    """The first inventory given to the command, or the default one."""
    return Path((context.CLIARGS.get("inventory") or ["inventory/local"])[0])


def inventory_overrides(command: str) -> dict[str, Any]:
    """Variables given with `-e` beside the command's own, to pass on to the commands that it starts."""
    return {name: value for name, value in extra_variables().items() if name not in operator_variables.COMMANDS[command]}


def operator_options(command: str, task_vars: dict[str, Any]) -> dict[str, Any]:
    """The checked operator variables of a command.

    Raises:
        LockstepError: an unknown name, or `--limit`.
    """
    if task_vars.get("ansible_limit"):
        raise LockstepError(
            f"--limit {task_vars['ansible_limit']}: a synchronous cluster waits for every worker, so hosts can't be left out; "
            "omit --limit and choose how many train with -e workers=N, or take hosts out of the inventory."
        )
    options = operator_variables.check_variables(command, extra_variables(), inventory_variables())
    for name, values in _repeated().items():
        if name in options and name not in ADDED_UP:
            Display().warning(f"-e {name} is given {len(values)} times; the last counts: {name}={values[-1]}, not {', '.join(values[:-1])}")
    return options


def inventory_variables() -> set[str]:
    """Variables that an inventory may set and `-e` may therefore override: the roles' own and a few more."""
    files = project.ROOT.glob("roles/*/defaults/main.yml")
    return INVENTORY.union(*(yaml.safe_load(file.read_text(encoding="utf-8")) for file in files))


def terminal() -> bool:
    """Return whether the user's terminal can redraw a line; the callback sets LOCKSTEP_TTY in the main process."""
    return os.environ.get("LOCKSTEP_TTY") == "1"


def columns() -> int | None:
    """Width of the user's terminal, characters; None if the output goes elsewhere."""
    return shutil.get_terminal_size().columns if terminal() else None


def entered() -> float | None:
    """When the user pressed Enter, in seconds since 1970; the callback sets it from the main process."""
    return float(os.environ["LOCKSTEP_ENTERED"]) if "LOCKSTEP_ENTERED" in os.environ else None


def stages() -> list[tuple[str, float]]:
    """The command's stages so far, with their starts in seconds since 1970; the callback sets them from the main process."""
    return [(str(name), float(at)) for name, at in json.loads(os.environ.get("LOCKSTEP_STAGES", "[]"))]


PROGRAM = re.compile(r"(?<![\w/.-])ansible-playbook (?=[\w/-]+\.yml|-i )")


def as_typed(text: str) -> str:
    """A text whose commands begin as this one did, and name the inventory that it was given."""
    program = _program()
    return PROGRAM.sub(lambda _: f"{program} ", _with_inventory(text))


def _program() -> str:
    """How a shell finds this program: `make train` runs it where nobody has activated its environment."""
    own, found = Path(sys.argv[0]), shutil.which("ansible-playbook")
    if own.name != "ansible-playbook" or not own.is_file() or (found and own.samefile(found)):
        return "ansible-playbook"
    return shlex.quote(project.relative(own.absolute()))


def _with_inventory(text: str) -> str:
    given = (context.CLIARGS.get("inventory") or ()) if context.CLIARGS else ()
    if not given or not any(argument.startswith(("-i", "--inventory")) for argument in sys.argv[1:]):
        return text
    options = " ".join(f"-i {shlex.quote(project.relative(Path(one)))}" for one in given)
    return COMMAND.sub(lambda match: f"{match.group(0)}{options} ", text)
