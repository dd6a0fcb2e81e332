"""The result of a run, as its command ends with it."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from control.common import command_line
from control.common.project import relative
from control.runs.results import expected_speed, mlflow_log, stragglers
from control.runs.results.run_summary import lost_snapshots, output
from control.runs.show import parameter_server_text, result_text
from trainer.data.spec import noun
from trainer.rundir.launch_record import LaunchRecord
from trainer.rundir.schemas import read_history

FAIR_STEPS = 100


def shown_result(folder: Path, summary: dict[str, Any], commands: bool = True, printed: Collection[int] = ()) -> str:
    """The end of a run for the terminal: epochs not `printed` yet, best epoch, files, the next `commands`, unless another stage follows."""
    rows = read_history(folder / "history.csv")
    expected = summary.get("predicted_images_per_s")
    # A run of a few steps is mostly start-up, so it is not compared with a prediction.
    fair = rows and summary.get("steps", 0) >= FAIR_STEPS
    called = noun(LaunchRecord.read(folder).dataset.get("spec"))
    predicted = expected_speed.sentence(expected, rows[-1]["images_per_s"], called) if expected is not None and fair else ""
    if "script" in summary:
        return result_text.script_result(folder.name, relative(folder), summary, output(folder))
    more = [("snapshots", lost_snapshots(folder, summary)), ("straggler", stragglers.of_run(folder))]
    more += [*parameter_server_text.result(folder), ("MLflow", mlflow_log.place(folder))]
    pairs = [("predicted", predicted), *more]
    return result_text.result(folder.name, relative(folder), summary, rows, pairs, called, commands, printed, command_line.columns())
