"""Conclude a sweep: analysis.md, pictures, the answer in words. Needs no host."""

from pathlib import Path
from typing import Any

from control import project
from control.command_line import as_typed
from control.sweep import settings, settings_results, settings_text, sweep_results, sweep_text
from control.sweep.tasks.plan import watts
from control.task import Task


def conclude(task: Task) -> dict[str, Any]:
    """Recomputes the sweep's results from its rows."""
    folder = Path(task.arguments["sweep"]["folder"])
    if settings.are_of(folder):
        ranked = settings_results.conclude(folder, as_typed)
        shown = settings_text.results(ranked, project.relative(folder))
        return {"if_interrupted": None, "changed": ranked.changed, "show_last": shown}
    results = sweep_results.conclude(folder, watts(task.arguments["options"]), as_typed)
    shown = sweep_text.results(results, project.relative(folder))
    return {"if_interrupted": None, "changed": results.changed, "show_last": shown}
