"""Judge, once it is known whether uv is to be had, whether every host can make its environment."""

from typing import Any

from plugins.shared import control, provisioning
from trainer.errors import LockstepError


class ActionModule(control.ControlAction):
    """Refuses before the first change."""

    def act(self) -> dict[str, Any]:
        """Judge."""
        problems = provisioning.venv_refusals(self.arguments["hosts"], self.arguments["wheels"])
        if problems:
            raise LockstepError(
                "\n".join(["Nothing can be provisioned like this, and nothing was changed:", *(f"  {one}" for one in problems)])
            )
        return {}
