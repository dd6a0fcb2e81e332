"""Plan a picture of one batch, using only a training's configuration and dataset."""

from typing import Any

from control import command_line
from control.operator_variables import integer
from control.runs import planning
from control.task import Task

COMMAND = "playbooks/visualize"


def plan_batch(task: Task) -> dict[str, Any]:
    """Check the options, resolve them. Returns the facts `plan` and `batch_wanted`."""
    options = command_line.operator_options(COMMAND, task.task_vars)
    wanted = {"images": integer("images", options.get("images", 32)), "step": integer("step", options.get("step", 1))}
    asked: dict[str, Any] = {key: options[key] for key in ("config", "dataset", "model", "set") if key in options}
    hosts = planning.hosts(task.task_vars)[:1]
    plan = planning.make({**asked, "run": "picture"}, hosts, "pictures", 1, task.arguments["packs"], not task.check_mode)
    return {"ansible_facts": {"plan": plan, "batch_wanted": wanted}}
