"""What holds of every playbook."""

import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import yaml

from plugins.filter.lockstep import FUNCTIONS, FilterModule

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOKS = ROOT / "playbooks"
FATAL = "any_errors_fatal = true" in (ROOT / "ansible.cfg").read_text(encoding="utf-8")
"""Of a play that does not say."""


def fatal_though_ignored(tasks, fatal):
    """Names of tasks that ignore a host that can't be reached, and whose play would end at it all the same."""
    for task in tasks:
        inherited = task.get("any_errors_fatal", fatal)
        if task.get("ignore_unreachable") and (inherited or task.get("run_once")) and not task.get("ignore_errors"):
            yield task.get("name")
        for part in ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always"):
            yield from fatal_though_ignored(task.get(part, ()), inherited)


def test_no_play_ignores_a_host_silently():
    """Ansible heeds `ignore_unreachable` only where an error is not fatal: a run ended without its conclusion."""
    plays = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) or [] for path in PLAYBOOKS.rglob("*.yml")}
    assert len(plays) > 10
    wrong = {name: list(fatal_though_ignored(play, FATAL)) for name, play in plays.items()}
    assert {name: tasks for name, tasks in wrong.items() if tasks} == {}


def test_no_filter_takes_more_than_two_arguments():
    """What needs more is computed in the plan, or by the action that needs it."""
    filters = FilterModule().filters() | {name: pkgutil.resolve_name(place) for name, place in FUNCTIONS.items()}
    more = {name for name, function in filters.items() if len(inspect.signature(function).parameters) > 3}
    assert more == set()


def test_filters_import_nothing_before_they_are_called():
    """Each process of a task loads them all."""
    assert not {"control", "trainer"} & imported("from plugins.filter.lockstep import FilterModule; FilterModule().filters()")


def test_a_plan_needs_no_slow_imports():
    """The command waits for them."""
    found = imported("import control.runs.planning.plan")
    assert not {"tensorflow", "keras", "tensorboard", "ansible.utils.display", "jinja2"} & found


def imported(program):
    """Modules that a program imports, by name."""
    shown = f"{program}; import sys; print(*sys.modules)"
    return {*subprocess.run([sys.executable, "-c", shown], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()}
