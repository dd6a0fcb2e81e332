"""The action for tasks without a host: `control: {do: runs.plan, ...}` runs a function of `control/runs/tasks/plan.py`."""

import importlib
from collections.abc import Callable
from typing import Any

from control.common.task import Task
from plugins.shared.base_action import Action


class ActionModule(Action):
    """Runs one `Task`."""

    _requires_connection = False

    def close_to_others(self) -> None:
        """Except for the lab: its nodes read their settings, and an image's files, as other users."""
        if not str(self._task.args.get("do", "")).startswith("lab."):
            super().close_to_others()

    def act(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Run the task."""
        return self.function(do)(Task(arguments, self.task_vars, bool(self._task.check_mode), self._templar.template, self.for_host))

    def function(self, name: str) -> Callable[[Task], dict[str, Any]]:
        """The function that `do` names: `runs.prediction.write`, or `runs.plan` for `runs.plan.plan`."""
        domain, _, task = name.partition(".")
        return task_in(f"control.{domain}.tasks", task)


def task_in(folder: str, name: str) -> Callable[[Task], dict[str, Any]]:
    """A task of a folder: `prediction.write`, or `plan` for `plan.plan`."""
    module, _, task = name.partition(".")
    found: Callable[[Task], dict[str, Any]] = getattr(importlib.import_module(f"{folder}.{module}"), task or module)
    return found
