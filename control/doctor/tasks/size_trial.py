"""Size of the doctor's trial: as many steps as a measurement needs, if the hosts are quick enough, else two."""

from dataclasses import replace
from typing import Any

from control.common import configurations
from control.common.task import Task

STEPS_PER_CALL, CALLS = 8, 5
"""Steps per call, as in a training by default, and number of calls, of which the first traces."""
LONGEST_S = 20.0
"""Most seconds of own work that the trial may take."""


def size_trial(task: Task) -> dict[str, Any]:
    """Decide from each host's own step. Returns the fact `plan` with more steps, or nothing if only two steps are possible."""
    plan, timed = task.plan, task.arguments["timed"]
    steps = STEPS_PER_CALL * CALLS
    if steps * max(answer["step_seconds"] for answer in timed.values()) > LONGEST_S:
        return {}
    longer = {"train.steps_per_epoch": steps, "train.steps_per_call": STEPS_PER_CALL}
    config = configurations.build(configurations.override(plan.config, longer))
    written = configurations.dump(config)
    counts = {**plan.counts, "steps_per_epoch": steps, "total_steps": steps}
    longer_plan = replace(plan, config=configurations.to_dict(config), config_yaml=written, asked_yaml=written, counts=counts)
    return {"ansible_facts": {"plan": longer_plan}}
