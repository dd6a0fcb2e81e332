"""Show a run's status as a table, or its workers' last log lines."""

from dataclasses import replace
from typing import Any

from control.common import project, text
from control.common.operator_variables import boolean
from control.common.task import Task
from control.runs.launch import waiting_runs
from control.runs.results import next_steps
from control.runs.results.run_folder import RunFolder
from control.runs.show import status
from control.runs.show.status import WorkerSeen
from control.runs.show.timeline_text import show_timeline
from control.runs.tasks import several
from trainer.common.errors import ConfigError, LockstepError
from trainer.common.safe_text import printable


def show_status(task: Task) -> dict[str, Any]:
    """Show the status once, on the control node, from the observations of every host (`looked`)."""
    name, looked = task.arguments["run"], task.arguments["looked"]
    seen = [WorkerSeen(**look["seen"]) for look in looked.values() if "seen" in look]
    if files := task.arguments.get("logs"):
        again = text.next_commands([("new lines as they come", f"ansible-playbook logs.yml -e run={name} -e follow=true")])
        commands = again if any(look.state == "running" for look in seen) else ""
        return {
            "if_interrupted": None,
            "show_last": "\n\n".join([*(_log(look, files[look.host]) for look in seen), *([commands] if commands else [])]),
        }
    options = task.arguments.get("options", {})
    jobs = waiting_runs.Jobs.of({host: one["jobs"] for host, one in looked.items() if "jobs" in one})
    collected = _collect(task, jobs, options) if "collect" in options else ""
    run = RunFolder(project.RUNS / name)
    shown = status.table(run, task.hosts, seen, task.arguments["counts"], jobs)
    if any(look.state == "running" for look in seen):
        commands = next_steps.under_way(name)
    else:
        summary = run.summary
        commands = text.next_commands(next_steps.after_run(name, replace(summary, state=summary.state or "FAILED"), run.history))
    asked = boolean("timeline", options.get("timeline", False))
    times = [show_timeline(run)] if asked else []
    every = [] if "run" in options else [status.all_runs(jobs)]
    parts = [collected or shown, *times, *every, commands]
    return {"changed": bool(collected) and not task.check_mode, "show_last": "\n\n".join(parts)}


def _collect(task: Task, jobs: waiting_runs.Jobs, options: dict[str, Any]) -> str:
    """Fetch the results of ended runs, each with `stop.yml`, which then stops nothing; return a text on the outcome.

    Raises:
        LockstepError: `collect` is not `all`, or runs that could not be collected, with the reasons.
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


def _log(look: WorkerSeen, file: str) -> str:
    lines = look.log or [look.note or "(no log)"]
    return "\n".join([f"{look.host}: last {len(lines)} lines of {file}", *(f"  {line}" for line in lines)])
