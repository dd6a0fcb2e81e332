"""The action for tasks without a host: `control: {do: runs.plan, ...}` runs a class of `control/runs/tasks/plan.py`."""

import importlib
from typing import Any

from control.task import Task
from plugins.shared.action import Action


class ActionModule(Action):
    """Runs one `Task`."""

    _requires_connection = False

    def close_to_others(self) -> None:
        """Except for the lab: its nodes read their settings, and an image's files, as other users."""
        if not str(self._task.args.get("do", "")).startswith("lab."):
            super().close_to_others()

    def act(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Run the task."""
        return task_class(do)(arguments, self.task_vars, bool(self._task.check_mode), self._templar.template).act()


def task_class(name: str) -> type[Task]:
    """The class that `do` names."""
    domain, _, task = name.partition(".")
    package = "benchmarks" if domain == "benchmarks" else f"control.{domain}"
    named_class: type[Task] = getattr(importlib.import_module(f"{package}.tasks.{task}"), "".join(map(str.capitalize, task.split("_"))))
    return named_class
