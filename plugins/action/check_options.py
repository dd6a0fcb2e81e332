"""Refuse operator variables that a command does not take, and a state that is none."""

from typing import Any

from plugins.shared import control
from trainer.config import nearest
from trainer.errors import ConfigError

STATES = ("present", "absent")


class ActionModule(control.ControlAction):
    """Of commands that need nothing else from the control node."""

    def act(self) -> dict[str, Any]:
        """Check."""
        options = control.operator_options(self.arguments["command"], self.task_vars)
        state = str(options.get("state", "present"))
        if state not in STATES:
            raise ConfigError(f"state={state}: expected present or absent{nearest(state, STATES)}")
        return {}
