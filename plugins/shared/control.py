"""The control node's side: operator variables, results, refusals."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from ansible import context
from ansible.errors import AnsibleActionFail, AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

from trainer import operator_variables
from trainer.analysis import prediction, text
from trainer.errors import LockstepError
from trainer.files import read_json
from trainer.telemetry import read_history

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs"
SWEEPS = ROOT / "sweeps"
FAIR_STEPS = 100
PRIVATE = ROOT / ".lockstep"
TRIALS = "trials"
"""Where a sweep's trials lie: `trials/<sweep>` below worker_root, which may be this very folder; `sweeps/<sweep>/trials` here."""
INVENTORY = {"worker_root", "worker_address", "worker_role", "dfs_path", "gpus", "control_packs", "default_workers"}


def runs_folder(place: str) -> Path:
    """Folder of run directories on the control node: people's runs, a sweep's trials, or a command's own."""
    kind, _, name = place.partition("/")
    if kind == TRIALS:
        return SWEEPS / name / TRIALS
    return RUNS if place == "runs" else PRIVATE / place


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turn a refusal, of ours or of a filter, into a failed task with only its message."""
    try:
        yield
    except (LockstepError, AnsibleFilterError) as error:
        raise AnsibleActionFail(str(error)) from None


def extra_variables() -> dict[str, Any]:
    """Everything given with `-e`, files included."""
    return dict(load_extra_vars(DataLoader()))


def inventory() -> Path:
    """The first inventory that the command was given, or the default one."""
    return Path((context.CLIARGS.get("inventory") or ["inventory/local"])[0])


def sweeps() -> list[str]:
    """Names of the sweeps that are there, the newest last."""
    return [path.parent.name for path in sorted(SWEEPS.glob("*/summary.json"), key=lambda path: path.stat().st_mtime)]


def place(host: dict[str, Any]) -> str:
    """Name and address of a host in what is written down: two inventories may both have a node01."""
    return f"{host['name']} {host['address']}"


def host_names(places: list[str]) -> list[str]:
    """The names in what `place` gave."""
    return [place.split()[0] for place in places]


def inventory_overrides(command: str) -> dict[str, Any]:
    """What was given with `-e` beside a command's own variables: for the commands that it starts."""
    return {name: value for name, value in extra_variables().items() if name not in operator_variables.COMMANDS[command]}


def operator_options(command: str, task_vars: dict[str, Any]) -> dict[str, Any]:
    """The checked operator variables of a command.

    Raises:
        LockstepError: an unknown name, or `--limit`.
    """
    if task_vars.get("ansible_limit"):
        raise LockstepError(
            f"--limit {task_vars['ansible_limit']}: a synchronous cluster waits for every worker, so hosts can't be left out; "
            "leave --limit away and choose how many train with -e workers=N, or take hosts out of the inventory."
        )
    return operator_variables.check(command, extra_variables(), inventory_variables())


def inventory_variables() -> set[str]:
    """Variables that an inventory may set, and that `-e` may therefore override: the roles' own and a few more."""
    files = ROOT.glob("roles/*/defaults/main.yml")
    return INVENTORY.union(*(yaml.safe_load(file.read_text(encoding="utf-8")) for file in files))


class ControlAction(ActionBase):
    """An action of the control node alone: it needs no connection, and a refusal is one message."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Act, and add what came of it to Ansible's own result."""
        result = super().run(tmp, task_vars)
        self.arguments, self.task_vars = self._task.args, task_vars or {}
        with refusing():
            result.update(self.act())
        return result

    def act(self) -> dict[str, Any]:
        """Do what the task is for.

        Raises:
            LockstepError: it can't be done; shown without a traceback.
        """
        raise NotImplementedError


def read_summary(folder: Path) -> dict[str, Any]:
    """summary.json of a run directory; `{"state": None}` before there is one."""
    path = folder / "summary.json"
    return dict(read_json(path)) if path.is_file() else {"state": None}


def shown_result(folder: Path, summary: dict[str, Any]) -> str:
    """The end of a run for the terminal: epochs, best epoch, where things lie, next commands."""
    rows = read_history(folder / "history.csv")
    expected = summary.get("predicted_images_per_s")
    # A run of a few steps is start-up for the most part: nothing to hold a prediction against.
    fair = rows and summary.get("steps", 0) >= FAIR_STEPS
    predicted = prediction.sentence(expected, rows[-1]["images_per_s"]) if expected and fair else ""
    return text.result(folder.name, relative(folder), summary, rows, predicted)


def terminal() -> bool:
    """Whether the person's terminal can redraw a line; the callback says so from the main process."""
    return os.environ.get("LOCKSTEP_TTY") == "1"


def relative(path: Path) -> str:
    """A path as a person in the project's folder would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
