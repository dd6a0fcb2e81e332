"""The actions `control` and `benchmark`: which function a task of a playbook names, and what becomes of a refusal."""

import ast
import inspect
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from benchmarks.plugins import benchmark
from plugins.action.control import ActionModule
from tests.unit.conftest import ROOT

PLAYBOOKS = [*ROOT.glob("*.yml"), *(path for folder in ("playbooks", "roles", "benchmarks") for path in (ROOT / folder).rglob("*.yml"))]


def uses(node):
    """Every task in a YAML tree that names a function, as `control.runs.plan` or `benchmark.run_peers`."""
    if isinstance(node, dict):
        yield from (f"{action}.{node[action]['do']}" for action in ACTIONS if isinstance(node.get(action), dict))
        for value in node.values():
            yield from uses(value)
    elif isinstance(node, list):
        for value in node:
            yield from uses(value)


ACTIONS = {"control": ActionModule, "benchmark": benchmark.ActionModule}
USED = sorted({name for path in PLAYBOOKS for name in uses(yaml.safe_load(path.read_text(encoding="utf-8")))})
WRITTEN = [path for folder in ("control", "benchmarks") for path in (ROOT / folder).rglob("tasks/*.py") if path.stem != "__init__"]


def names_in(path: Path) -> list[str]:
    """The tasks of a module: of `control/runs/tasks/conclude.py`, `control.runs.conclude` and `control.runs.conclude.conclude_stop`."""
    folder = path.relative_to(ROOT).parts[-3]
    module = f"benchmark.{path.stem}" if folder == "benchmarks" else f"control.{folder}.{path.stem}"
    functions = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
    tasks = [one.name for one in functions if [argument.arg for argument in one.args.args] == ["task"] and not one.name.startswith("_")]
    return [module if name == path.stem else f"{module}.{name}" for name in tasks]


@pytest.mark.parametrize("name", USED)
def test_every_task_of_a_playbook_is_a_function(name):
    action, _, named = name.partition(".")
    function = ACTIONS[action].function(None, named)
    assert list(inspect.signature(function).parameters) == ["task"]


def test_no_task_is_left_that_no_playbook_uses():
    assert sorted(name for path in WRITTEN for name in names_in(path)) == USED


@pytest.mark.parametrize(("do", "mode"), [("runs.plan", 0o640), ("sweep.plan", 0o640), ("lab.files", 0o644)])
def test_task_files_are_private_but_the_labs(do, mode, tmp_path):
    """What a task writes is closed to other users but the labs files. Also where its code names no mode."""
    before = os.umask(0o022)
    try:
        action = ActionModule.__new__(ActionModule)
        action._task = SimpleNamespace(args={"do": do})
        action.close_to_others()
        (tmp_path / "written").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "written").stat().st_mode & 0o777 == mode
