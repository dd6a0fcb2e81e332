"""Find workers of an earlier launch that wait for one that has ended; refuse to change a run that trains."""

from dataclasses import replace
from typing import Any

from control.common import text
from control.common.plan import Plan
from control.common.task import Task
from control.runs.launch import launches, reservations
from control.runs.planning import plan_command
from control.runs.results.run_folder import RunFolder
from control.runs.show import status
from control.runs.show.status import WorkerSeen
from control.runs.tasks.plan import waits


def settle(task: Task) -> dict[str, Any]:
    """Settle an earlier launch: if it lost a worker, it can't go on, because workers train together or not at all.

    Returns the fact `worker_left_alone`, names of hosts, and `worker_nothing_to_start` if no worker has to start.

    No worker has to start if the others train without the absent ones, if they wait for a host that can't be reached, or if all work is
    done and only has to be collected. `worker_may_return` requests a second look at a worker for which supervisors wait, because its host
    may have just restarted; `again` marks that second look.
    """
    plan, seen = task.plan, [WorkerSeen(**one) for one in task.arguments["seen"]]
    run = RunFolder(plan.folder)
    record, evaluators = run.record, run.evaluators
    without = [one.host for one in seen if one.host in evaluators and one.state != "running"]
    launched = [host.name for host in record.posts if host.name not in evaluators]
    looks = status.Looks([one for one in seen if one.host not in evaluators], launched, len(record.hosts))
    goes_on = run.is_elastic and looks.goes_on()
    waits_for = [] if goes_on or not run.rejoin_wait else looks.waits_for()
    if waits_for and not task.arguments.get("again"):
        return {"ansible_facts": {"worker_may_return": True}, "show": f"{plan.run}: the others wait for {text.listed(waits_for)}"}
    # A reachable host without its worker will not start it again.
    waiting = bool(waits_for) and not looks.in_state("gone")
    lost, alone = ([], []) if goes_on or waiting else looks.left_alone()
    alive = looks.in_state("running")
    away = [one.host for one in looks.seen if one.host not in alive]
    launches.refuse_changes(plan, [host for host in alive if host not in alone], looks.progress(record.counts))
    shown = [plan_command.shown_plan(plan, task.task_vars["hostvars"], task.check_mode)] if waits(plan) else []
    if goes_on:
        return _only_watched(plan, [*shown, f"{plan.run} goes on without {text.listed(away)}"])
    if waiting:
        return _only_watched(plan, [*shown, f"{plan.run} waits for {text.listed(waits_for)}"])
    if without and looks.seen and not away:
        return _only_watched(plan, [*shown, f"{plan.run} goes on without {text.listed(without)} (evaluators)"])
    if _has_ended(plan, looks, run.is_elastic):
        return _only_watched(plan, [*shown, f"{plan.run} ended while no command watched: its results are collected"])
    if alone:
        ending, then = ("would end", "; only then hosts can be looked at") if task.check_mode else ("ending", "")
        shown.append(f"{', '.join(lost)} ended before the others: {ending} {', '.join(alone)} of the earlier launch{then}")
    return {"ansible_facts": {"worker_left_alone": alone}, **({"show": "\n".join(shown)} if shown else {})}


def _has_ended(plan: Plan, looks: status.Looks, elastic: bool) -> bool:
    """Return whether all requested work was done while no command watched; a script's run counts no steps."""
    steps = plan.counts.get("total_steps", 0)
    if plan.roles and looks.seen:
        # In an asynchronous run, only the chief counts steps.
        looks = replace(looks, seen=[replace(one, steps=looks.seen[0].steps) for one in looks.seen], workers=1)
    return bool(steps) and not plan.changes and looks.has_ended(steps, elastic)


def _only_watched(plan: Plan, shown: list[str]) -> dict[str, Any]:
    """Result of the task if no worker has to start."""
    reservations.release(plan.run)
    under_way = {"run_under_way": plan.run, "before_start": None}
    return {**under_way, "ansible_facts": {"worker_left_alone": [], "worker_nothing_to_start": True}, "show": "\n".join(shown)}
