"""Find workers of an earlier launch that wait for one that ended; refuse to change a training run."""

from typing import Any

from control.common import text
from control.common.plan import Plan
from control.common.task import Task
from control.runs.hosts import host_roles, run_recovery
from control.runs.launch import launches, reservations
from control.runs.planning import plan_command
from control.runs.show import status
from control.runs.tasks.plan import waits
from trainer.rundir.launch_record import LaunchRecord


def settle(task: Task) -> dict[str, Any]:
    """A launch that lost a worker can't go on: workers train together or not at all.

    Returns the fact `worker_left_alone`: names of hosts; and `worker_nothing_to_start` if nothing has to start.

    That is so where the others train without those that are away, where they wait for a host that can't be reached, and where all is done
    and only has to be collected. `worker_may_return` asks for another look at a worker for which supervisors wait: its host may have
    just restarted. With `again`, that look has been taken.
    """
    plan, seen = task.plan, task.arguments["seen"]
    folder = plan.folder
    record = LaunchRecord.read(folder)
    evaluators = host_roles.evaluators(record.hosts)
    without = [one["host"] for one in seen if one["host"] in evaluators and one["state"] != "running"]
    seen = [one for one in seen if one["host"] not in evaluators]
    launched, workers = [host.name for host in record.posts if host.name not in evaluators], len(record.hosts)
    elastic = run_recovery.is_elastic(folder)
    goes_on = elastic and status.goes_on(seen, launched, workers)
    waits_for = [] if goes_on or not run_recovery.rejoin_wait(folder) else status.waits(seen, launched)
    if waits_for and not task.arguments.get("again"):
        return {"ansible_facts": {"worker_may_return": True}, "show": f"{plan.run}: the others wait for {text.listed(waits_for)}"}
    # A host that is there, and its worker is not, will not bring it back.
    waiting = bool(waits_for) and "gone" not in {one["state"] for one in seen}
    lost, alone = ([], []) if goes_on or waiting else status.left_alone(seen, launched)
    alive = [one["host"] for one in seen if one["state"] == "running" and one["host"] not in alone]
    launches.refuse_changes(plan, alive, status.far(seen, record.counts))
    shown = [plan_command.shown(plan, task.task_vars["hostvars"], task.check_mode)] if waits(plan) else []
    if goes_on:
        away = [one["host"] for one in seen if one["state"] != "running"]
        return _only_watched(plan, [*shown, f"{plan.run} goes on without {text.listed(away)}"])
    if waiting:
        return _only_watched(plan, [*shown, f"{plan.run} waits for {text.listed(waits_for)}"])
    if without and seen and all(one["state"] == "running" for one in seen):
        return _only_watched(plan, [*shown, f"{plan.run} goes on without {text.listed(without)} (evaluators)"])
    if _has_ended(task, seen, launched, workers, elastic):
        return _only_watched(plan, [*shown, f"{plan.run} ended while no command watched: its results are collected"])
    if alone:
        ending, then = ("would end", "; only then hosts can be looked at") if task.check_mode else ("ending", "")
        shown.append(f"{', '.join(lost)} ended before the others: {ending} {', '.join(alone)} of the earlier launch{then}")
    return {"ansible_facts": {"worker_left_alone": alone}, **({"show": "\n".join(shown)} if shown else {})}


def _has_ended(task: Task, seen: list[dict[str, Any]], launched: list[str], workers: int, elastic: bool) -> bool:
    """Return whether all requested work was done while no command watched; a script's run counts no steps."""
    plan = task.plan
    steps = plan.counts.get("total_steps", 0)
    if plan.roles:
        # Only the chief of an asynchronous run counts its steps.
        workers, seen = 1, [seen[0], *(one | {"steps": seen[0]["steps"]} for one in seen[1:])] if seen else []
    return bool(steps) and not plan.changes and status.has_ended(seen, launched, workers, steps, elastic)


def _only_watched(plan: Plan, shown: list[str]) -> dict[str, Any]:
    """Result of a task if nothing has to start."""
    reservations.release(plan.run)
    under_way = {"run_under_way": plan.run, "before_start": None}
    return {**under_way, "ansible_facts": {"worker_left_alone": [], "worker_nothing_to_start": True}, "show": "\n".join(shown)}
