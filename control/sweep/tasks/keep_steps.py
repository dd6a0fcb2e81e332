"""Keep each host's own step, timed before and after the trials: the sweep's model starts from it."""

from pathlib import Path
from typing import Any

from control.campaign import SUMMARY
from control.sweep.sweep_results import times
from control.task import Task
from trainer.files import read_json, write_json


def keep_steps(task: Task) -> dict[str, Any]:
    """Add what was timed now to what was timed earlier. Writes them to the sweep's summary.json."""
    path = Path(task.arguments["sweep"]["folder"]) / SUMMARY
    record = dict(read_json(path))
    before = times(record)
    now = {host: [*before.get(host, []), answer] for host, answer in task.arguments["timed"].items()}
    write_json(path, {**record, "timed": {**before, **now}})
    return {}
