"""Plan a picture of one batch: a training's configuration and dataset, of which nothing else is used."""

from typing import Any

from plugins.shared import control, planning
from trainer.plan import integer

COMMAND = "playbooks/visualize"


class ActionModule(control.ControlAction):
    """Returns the facts `plan` and `batch_wanted`."""

    def act(self) -> dict[str, Any]:
        """Check what was typed, resolve it."""
        options = control.operator_options(COMMAND, self.task_vars)
        wanted = {"images": integer("images", options.get("images", 32)), "step": integer("step", options.get("step", 1))}
        asked: dict[str, Any] = {key: options[key] for key in ("config", "dataset", "set") if key in options}
        hosts = planning.hosts(self.task_vars)[:1]
        plan = planning.make({**asked, "run": "picture"}, hosts, "pictures", 1, self.arguments["packs"], not self._task.check_mode)
        return {"ansible_facts": {"plan": plan, "batch_wanted": wanted}}
