"""Show a run's status as a table, or its workers' last log lines."""

from typing import Any

from control.common import project, text
from control.common.task import Task
from control.runs.launch import waiting_runs
from control.runs.results import next_steps, run_summary
from control.runs.show import status
from control.runs.tasks import several
from trainer.common.errors import ConfigError, LockstepError
from trainer.common.safe_text import printable
from trainer.data.spec import noun
from trainer.rundir.launch_record import LaunchRecord
from trainer.rundir.schemas import read_history


def show_status(task: Task) -> dict[str, Any]:
    """Runs once, on the control node, with what was `looked` at on every host."""
    name, looked = task.arguments["run"], task.arguments["looked"]
    seen = [look["seen"] for look in looked.values() if "seen" in look]
    if files := task.arguments.get("logs"):
        again = text.next_commands([("new lines as they come", f"ansible-playbook logs.yml -e run={name} -e follow=true")])
        commands = again if any(look.get("state") == "running" for look in seen) else ""
        return {
            "if_interrupted": None,
            "show_last": "\n\n".join([*(_log(look, files[look["host"]]) for look in seen), *([commands] if commands else [])]),
        }
    options = task.arguments.get("options", {})
    jobs = waiting_runs.Jobs.of({host: one["jobs"] for host, one in looked.items() if "jobs" in one})
    collected = _collect(task, jobs, options) if "collect" in options else ""
    summary = run_summary.read_summary(project.RUNS / name)
    called = noun(LaunchRecord.read(project.RUNS / name).dataset.get("spec"))
    shown = status.table(name, summary["state"], task.hosts, seen, task.arguments["counts"], called, jobs)
    rows = read_history(project.RUNS / name / "history.csv")
    running = any(look.get("state") == "running" for look in seen)
    commands = (
        next_steps.under_way(name)
        if running
        else text.next_commands(next_steps.after_run(name, {"epochs": 1, "state": "FAILED", **_known(summary)}, rows))
    )
    every = [] if "run" in options else [status.all_runs(jobs)]
    parts = [collected or shown, *every, commands]
    return {"changed": bool(collected) and not task.check_mode, "show_last": "\n\n".join(parts)}


def _collect(task: Task, jobs: waiting_runs.Jobs, options: dict[str, Any]) -> str:
    """Fetch the results of runs that have ended, each as `stop.yml` does, which stops nothing then; what came of it.

    Raises:
        LockstepError: `collect` is not `all`, or which runs could not be collected, and why.
    """
    if options["collect"] != "all":
        asked = printable(str(options["collect"]), 40)
        raise ConfigError(f"collect={asked}: expected all: runs that have ended, or the one that run= names")
    names = [name for name in status.uncollected(jobs) if options.get("run", name) == name]
    if not names:
        return "Nothing to collect: the results of all runs that have ended are here."
    if task.check_mode:
        return f"{text.count(len(names), 'run')} would be collected: {', '.join(names)}"
    if failed := several.each("status", "stop", names, "collecting"):
        raise LockstepError("\n".join([f"{len(failed)} of {text.count(len(names), 'run')} could not be collected", *failed]))
    return f"{text.count(len(names), 'run')} collected: {', '.join(names)}"


def _known(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if value is not None}


def _log(look: dict[str, Any], file: str) -> str:
    lines = look.get("log") or [look.get("note") or "(no log)"]
    return "\n".join([f"{look['host']}: last {len(lines)} lines of {file}", *(f"  {line}" for line in lines)])
