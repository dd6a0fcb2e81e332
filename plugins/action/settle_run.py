"""Find the workers of an earlier launch that only wait for one that ended."""

from typing import Any

from plugins.shared import control
from trainer.analysis import status


class ActionModule(control.ControlAction):
    """Returns the fact `worker_left_alone`: names of hosts."""

    def act(self) -> dict[str, Any]:
        """Nothing of a launch that lost a worker can go on: workers train together or not at all."""
        lost, alone = status.left_alone(self.arguments["seen"])
        facts = {"ansible_facts": {"worker_left_alone": alone}}
        if not alone:
            return facts
        return {**facts, "show": f"{', '.join(lost)} ended before the others: ending {', '.join(alone)} of the earlier launch"}
