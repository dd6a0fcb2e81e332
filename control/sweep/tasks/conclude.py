"""Conclude a sweep: analysis.md, pictures, the answer in words, from its rows and each host's own step before and after the trials."""

from pathlib import Path
from typing import Any

from control.campaign.store import SUMMARY
from control.common import project
from control.common.command_line import as_typed
from control.common.task import Task
from control.sweep.scaling import sweep_results
from control.sweep.scaling.sweep_results import times
from control.sweep.settings import settings_results, trial_settings
from control.sweep.tasks.plan import watts
from trainer.common.files import read_json, write_json


def conclude(task: Task) -> dict[str, Any]:
    """Recompute the sweep's results from its rows."""
    folder = Path(task.arguments["sweep"]["folder"])
    if trial_settings.are_of(folder):
        ranked = settings_results.conclude(folder, as_typed)
        return {"if_interrupted": None, "changed": ranked.changed, "show_last": ranked.shown(project.relative(folder))}
    results = sweep_results.conclude(folder, watts(task.arguments["options"]), as_typed)
    return {"if_interrupted": None, "changed": results.changed, "show_last": results.shown(project.relative(folder))}


def keep_steps(task: Task) -> dict[str, Any]:
    """Append the new step times to the earlier ones in the sweep's summary.json."""
    path = Path(task.arguments["sweep"]["folder"]) / SUMMARY
    record = dict(read_json(path))
    before = times(record)
    now = {host: [*before.get(host, []), answer] for host, answer in task.arguments["timed"].items()}
    write_json(path, {**record, "timed": {**before, **now}})
    return {}
