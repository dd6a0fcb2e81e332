"""Judge whether every host can make its environment, once it is known whether uv is available."""

from typing import Any

from control.provision import provisioning
from control.task import Task


class Venv(Task):
    """Refuses before the first change."""

    def act(self) -> dict[str, Any]:
        """Judge."""
        problems = provisioning.venv_refusals(self.arguments["hosts"], self.arguments["wheels"])
        provisioning.refuse(problems)
        return {}
