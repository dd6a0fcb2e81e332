"""Find workers of an earlier launch that wait for one that ended; refuse to change a training run."""

from pathlib import Path
from typing import Any

from control.runs import launches, planning, status
from control.runs.tasks.plan import waits
from control.task import Task
from trainer.rundir import recorded


class Settle(Task):
    """Returns the fact `worker_left_alone`: names of hosts."""

    def act(self) -> dict[str, Any]:
        """A launch that lost a worker can't go on: workers train together or not at all."""
        plan, seen = self.arguments["plan"], self.arguments["seen"]
        record = recorded(Path(plan["folder"]))
        lost, alone = status.left_alone(seen, [host["name"] for host in record.get("hosts", [])])
        alive = [one["host"] for one in seen if one["state"] == "running" and one["host"] not in alone]
        launches.refuse_changes(plan, alive, status.far(seen, record.get("counts", {})))
        shown = [planning.shown(plan, self.task_vars["hostvars"])] if waits(plan) else []
        if alone:
            ending, then = ("would end", "; only then hosts can be looked at") if self.check_mode else ("ending", "")
            shown.append(f"{', '.join(lost)} ended before the others: {ending} {', '.join(alone)} of the earlier launch{then}")
        return {"ansible_facts": {"worker_left_alone": alone}, **({"show": "\n".join(shown)} if shown else {})}
