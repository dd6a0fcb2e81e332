"""Predict new examples: divide them over the run's hosts; combine, write and show the hosts' results."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from control.common import project
from control.common.child_playbooks import ending_at_signals, heeding_signals
from control.common.plan import Plan
from control.common.task import Task
from control.remote import trainer_process
from control.remote.published import Published
from control.runs.predict import predictions
from control.runs.predict.predictions import FOLDER, Prediction, PredictionRequest
from trainer.common.errors import LockstepError
from trainer.common.plain_values import from_plain
from trainer.rundir.launch_record import LaunchRecord


def plan_prediction(plan: dict[str, Any], options: dict[str, Any], hosts: list[dict[str, Any]], packs: str, check: bool) -> dict[str, Any]:
    """Check the options of a prediction, build the model, and read the input.

    Returns the facts `prediction`, the plan, and `published`, this version's trainer; with `--check`, only shows the plan.
    """
    run = from_plain(Plan, plan).folder
    asked = PredictionRequest.of(options, run, len(hosts))
    output = asked.output
    folder = project.PRIVATE / FOLDER / run.name
    shutil.rmtree(folder, ignore_errors=True)
    request = {"run": str(run), "given": asked.given, "called": asked.called, "hosts": asked.hosts, "into": str(folder)}
    with ending_at_signals():
        try:
            folder.mkdir(parents=True)
            planned = trainer_process.run_trainer(["new-examples"], f"reading {asked.called}", request)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    planned |= {"run": run.name, "epoch": asked.epoch, "called": asked.called, "classes": LaunchRecord.read(run).dataset["classes"]}
    if check:
        shutil.rmtree(folder)
        prediction = Prediction.of(planned)
        shown = predictions.show(prediction, None, project.relative(output) if output else "", planned["warnings"], _busy(planned))
        return {"show_last": f"Would predict {shown}"}
    here = {"folder": str(folder), "run_folder": str(run), "output": str(output or "")}
    return {"ansible_facts": {"prediction": {**planned, **here}, "published": Published.trainer(Path(packs))}}


def _busy(planned: dict[str, Any]) -> int:
    """Number of hosts that have rows."""
    return sum(1 for count in planned["rows"] if count)


def write(task: Task) -> dict[str, Any]:
    """Write the predictions once, on the control node; unless every host has `done` its part, only remove the examples."""
    planned = task.arguments["planned"]
    if any(part.get("failed") or part.get("unreachable") for part in task.arguments["done"]):
        return discard(planned)
    with heeding_signals() as ended:
        try:
            return _write(task, planned, Path(planned["folder"]), ended)
        finally:
            discard(planned)


def _write(task: Task, planned: dict[str, Any], folder: Path, ended: Callable[[], bool]) -> dict[str, Any]:
    hosts, output = [host.name for host in task.hosts], Path(planned["output"]) if planned["output"] else None
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
        predictions.write_predictions(output, counted())
    warnings = [*planned["warnings"], *([f"{bad:,} predicted numbers are NaN or infinite"] if bad else [])]
    busy = sum(1 for count in prediction.rows if count)
    shown = predictions.show(prediction, first, project.relative(output) if output else "", warnings, busy)
    return {"changed": output is not None, "show_last": shown}


def discard(planned: dict[str, Any]) -> dict[str, Any]:
    """Remove the examples from this machine."""
    shutil.rmtree(planned["folder"], ignore_errors=True)
    return {"changed": False}
