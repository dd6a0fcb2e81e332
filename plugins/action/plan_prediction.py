"""Read new examples on the control node, divide them over a run's hosts, and put the trainer where every host reads it."""

from typing import Any

from control.runs.tasks import prediction
from plugins.action.distribute import distribute
from plugins.shared.base_action import Action


class ActionModule(Action):
    """Runs on one host; with `--check`, on none. Returns the facts of `plan_prediction` in `control/runs/tasks/prediction.py`."""

    def act(self, path: str, host: str, **arguments: Any) -> dict[str, Any]:
        """Plan, send what is missing; what was planned does not outlive a failure."""
        planned = prediction.plan_prediction(**arguments, check=bool(self._task.check_mode))
        if self._task.check_mode:
            return planned
        facts = planned["ansible_facts"]
        try:
            return {**planned, "changed": distribute(self, facts["published"], path, host)}
        except BaseException:
            prediction.discard(facts["prediction"])
            raise
