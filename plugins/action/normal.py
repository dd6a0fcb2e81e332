"""Modules without their own action: this project's are sent lean, all others as Ansible sends them."""

import importlib.util
from pathlib import Path
from typing import Any

from ansible.plugins import action
from ansible.plugins.action import ActionBase

from control.remote import modules


def _ansibles() -> Any:
    """Ansible's own `normal`, whose name this file takes once Ansible has loaded it."""
    spec = importlib.util.spec_from_file_location("ansibles_normal", Path(str(action.__file__)).with_name("normal.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Normal: Any = _ansibles().ActionModule


class ActionModule(Normal):
    """Replaces Ansible's own; Ansible looks among a project's actions first to allow that."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module that the task names."""
        if modules.sends(self._task.action):
            result, self.task_vars = ActionBase.run(self, tmp, task_vars), task_vars or {}
            return {**result, **modules.execute(self, self._task.action, self._task.args, bool(self._task.check_mode))}
        return dict(super().run(tmp, task_vars))
