"""Show a run's status as a table, or its workers' last log lines."""

from typing import Any

from control import project, text
from control.runs import queue, run_results, status
from control.task import Task
from trainer.data.spec import noun
from trainer.records import read_history
from trainer.rundir import recorded


def show_status(task: Task) -> dict[str, Any]:
    """Runs once, on the control node, with every host's state."""
    name, seen = task.arguments["run"], task.arguments["seen"]
    if files := task.arguments.get("logs"):
        again = text.next_commands([("new lines as they come", f"ansible-playbook logs.yml -e run={name} -e follow=true")])
        commands = again if any(look.get("state") == "running" for look in seen) else ""
        return {
            "if_interrupted": None,
            "show_last": "\n\n".join([*(_log(look, files[look["host"]]) for look in seen), *([commands] if commands else [])]),
        }
    summary = run_results.read_summary(project.RUNS / name)
    called = noun(recorded(project.RUNS / name).get("dataset", {}).get("spec"))
    jobs = queue.Jobs.of({host: one["jobs"] for host, one in task.arguments["jobs"].items() if "jobs" in one})
    shown = status.table(name, summary["state"], task.arguments["hosts"], seen, task.arguments["counts"], called, jobs)
    rows = read_history(project.RUNS / name / "history.csv")
    running = any(look.get("state") == "running" for look in seen)
    commands = (
        text.under_way(name)
        if running
        else text.next_commands(text.after_run(name, {"epochs": 1, "state": "FAILED", **_known(summary)}, rows))
    )
    return {"show_last": "\n\n".join((shown, status.all_runs(jobs), commands))}


def _known(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if value is not None}


def _log(look: dict[str, Any], file: str) -> str:
    lines = look.get("log") or [look.get("note") or "(no log)"]
    return "\n".join([f"{look['host']}: last {len(lines)} lines of {file}", *(f"  {line}" for line in lines)])
