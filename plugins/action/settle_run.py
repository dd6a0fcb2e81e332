"""Find the workers of an earlier launch that only wait for one that ended."""

from pathlib import Path
from typing import Any

from plugins.shared import control
from trainer.analysis import status
from trainer.rundir import recorded


class ActionModule(control.ControlAction):
    """Returns the fact `worker_left_alone`: names of hosts."""

    def act(self) -> dict[str, Any]:
        """Nothing of a launch that lost a worker can go on: workers train together or not at all."""
        launched = recorded(Path(self.arguments["plan"]["folder"])).get("hosts", [])
        lost, alone = status.left_alone(self.arguments["seen"], [host["name"] for host in launched])
        facts = {"ansible_facts": {"worker_left_alone": alone}}
        if not alone:
            return facts
        ending, then = ("would end", "; only then hosts can be looked at") if self._task.check_mode else ("ending", "")
        return {**facts, "show": f"{', '.join(lost)} ended before the others: {ending} {', '.join(alone)} of the earlier launch{then}"}
