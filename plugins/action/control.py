"""The action for tasks without a host: `control: {do: runs.plan, ...}` runs a class of `control/runs/tasks/plan.py`."""

import importlib
from typing import Any

from ansible.plugins.action import ActionBase

from control.task import Task
from plugins.shared.action import refusing


class ActionModule(ActionBase):
    """Runs one `Task`."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the task, and add its result to Ansible's own."""
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        task = task_class(arguments.pop("do"))
        with refusing():
            result.update(task(arguments, task_vars or {}, bool(self._task.check_mode), self._templar.template).act())
        return result


def task_class(name: str) -> type[Task]:
    """The class that `do` names."""
    domain, _, task = name.partition(".")
    package = "benchmarks" if domain == "benchmarks" else f"control.{domain}"
    named_class: type[Task] = getattr(importlib.import_module(f"{package}.tasks.{task}"), "".join(map(str.capitalize, task.split("_"))))
    return named_class
