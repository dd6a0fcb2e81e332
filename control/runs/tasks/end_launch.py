"""Record that a launch is over: all of its workers run, or none does."""

from pathlib import Path
from typing import Any

from control import project
from control.runs import launches
from control.task import Task


def end_launch(task: Task) -> dict[str, Any]:
    """After `started`, the command says that training goes on without it; otherwise, report workers that could not be ended.

    Runs once, on the control node, after all hosts were asked to start or end their worker.
    """
    launch = task.arguments["launch"]
    if task.arguments["started"]:
        return _started(launch)
    left = [f"{name} ({why})" for name, ended in task.arguments["ended"].items() if (why := _trouble(ended))]
    if left:
        where = f"its workers could not be ended on {', '.join(left)}"
        task.warn([f"run {launch['run']}: a launch was interrupted, and {where}; the next train.yml tries again"])
        return {}
    launches.end(launch)
    taken_back = not all(ended.get("skipped") for ended in task.arguments["ended"].values())
    if taken_back:
        launches.forget_start(launch)
    message = f"run {launch['run']}: an interrupted launch was taken back; none of its workers is left"
    return {**({"show": message} if taken_back else {}), "launch_begun": None}


def _started(launch: dict[str, Any]) -> dict[str, Any]:
    # The command that starts the doctor's trial also takes it back.
    if not project.is_users(Path(launch["folder"])):
        return {}
    launches.end(launch)
    return {"launch_begun": None, "run_under_way": launch["run"]}


def _trouble(ended: dict[str, Any]) -> str:
    """Why a worker may still run; empty if it does not."""
    if not ended or ended.get("unreachable"):
        return "unreachable"
    return str(ended.get("msg")) if ended.get("failed") else ""
