"""Put together what the hosts predicted, write it, and show its first rows."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from control import project
from control.children import heeding_signals
from control.runs import predictions
from control.runs.predictions import Prediction
from control.task import Task
from trainer.errors import LockstepError


def write_prediction(task: Task) -> dict[str, Any]:
    """Runs on the control node."""
    planned = task.arguments["planned"]
    with heeding_signals() as ended:
        try:
            return _write(task, planned, Path(planned["folder"]), ended)
        finally:
            shutil.rmtree(planned["folder"], ignore_errors=True)


def _write(task: Task, planned: dict[str, Any], folder: Path, ended: Callable[[], bool]) -> dict[str, Any]:
    hosts, output = [host["name"] for host in task.arguments["hosts"]], Path(planned["output"]) if planned["output"] else None
    prediction = Prediction.of(planned, predictions.names_of(folder))
    arrays = predictions.collected(prediction, folder, hosts)
    blocks, bad = predictions.tables(prediction, arrays), 0
    first = next(blocks)

    def counted() -> Any:
        nonlocal bad
        for block in itertools.chain([first], blocks):
            if ended():
                raise LockstepError(f"output={planned['output']}: the command was ended before it was written")
            bad += predictions.not_finite(block)
            yield block

    if output is not None:
        predictions.write(output, counted())
    warnings = [*planned["warnings"], *([f"{bad:,} predicted numbers are NaN or infinite"] if bad else [])]
    busy = sum(1 for count in prediction.rows if count)
    shown = predictions.show(prediction, first, project.relative(output) if output else "", warnings, busy)
    return {"changed": output is not None, "show_last": shown}
