"""Find workers of an earlier launch that wait for one that ended; refuse to change a training run."""

from pathlib import Path
from typing import Any

from control import text
from control.runs import launches, planning, status, supervision
from control.runs.cluster import posts
from control.runs.tasks.plan import waits
from control.task import Task
from trainer.rundir import recorded


class Settle(Task):
    """Returns the fact `worker_left_alone`: names of hosts; and `worker_nothing_to_start` if nothing has to start.

    That is so where the others train without those that are away, where they wait for a host that can't be reached, and where all is done
    and only has to be collected. `worker_may_return` asks for another look at a worker for which supervisors wait: its host may have
    just restarted. With `again`, that look has been taken.
    """

    def act(self) -> dict[str, Any]:
        """A launch that lost a worker can't go on: workers train together or not at all."""
        plan, seen = self.arguments["plan"], self.arguments["seen"]
        record = recorded(Path(plan["folder"]))
        launched, workers = [host["name"] for host in posts(record)], len(record.get("hosts", []))
        elastic = supervision.is_elastic(Path(plan["folder"]))
        goes_on = elastic and status.goes_on(seen, launched, workers)
        steps = plan["counts"].get("total_steps")
        ended = bool(steps) and not plan["changes"] and status.has_ended(seen, launched, workers, steps, elastic)
        if not goes_on and supervision.rejoin_wait(Path(plan["folder"])) and status.waits(seen, launched):
            if not self.arguments.get("again"):
                names = text.listed([one["host"] for one in seen if one["state"] in status.AWAY])
                return {"ansible_facts": {"worker_may_return": True}, "show": f"{plan['run']}: the others wait for {names}"}
            goes_on = all(one["state"] in ("running", "unreachable") for one in seen) and any(one["state"] != "running" for one in seen)
        lost, alone = ([], []) if goes_on else status.left_alone(seen, launched)
        alive = [one["host"] for one in seen if one["state"] == "running" and one["host"] not in alone]
        launches.refuse_changes(plan, alive, status.far(seen, record.get("counts", {})))
        shown = [planning.shown(plan, self.task_vars["hostvars"])] if waits(plan) else []
        if goes_on:
            away = [one["host"] for one in seen if one["state"] != "running"]
            shown.append(
                f"{plan['run']} goes on without {text.listed(away)}" if elastic else f"{plan['run']} waits for {text.listed(away)}"
            )
            return _only_watched(plan, shown)
        if ended:
            shown.append(f"{plan['run']} ended while no command watched: its results are collected")
            return _only_watched(plan, shown)
        if alone:
            ending, then = ("would end", "; only then hosts can be looked at") if self.check_mode else ("ending", "")
            shown.append(f"{', '.join(lost)} ended before the others: {ending} {', '.join(alone)} of the earlier launch{then}")
        return {"ansible_facts": {"worker_left_alone": alone}, **({"show": "\n".join(shown)} if shown else {})}


def _only_watched(plan: dict[str, Any], shown: list[str]) -> dict[str, Any]:
    """What is returned where nothing has to start."""
    under_way = {"run_under_way": plan["run"], "before_start": None}
    return {**under_way, "ansible_facts": {"worker_left_alone": [], "worker_nothing_to_start": True}, "show": "\n".join(shown)}
