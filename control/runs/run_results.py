"""The end of a run, read from its folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control import text
from control.doctor import prediction
from control.project import relative
from control.runs import outcome, stragglers
from control.runs.outcome import Verdict
from trainer.files import read_json
from trainer.records import read_history
from trainer.rundir import recorded

FAIR_STEPS = 100


def read_summary(folder: Path) -> dict[str, Any]:
    """summary.json of a run directory; `{"state": None}` before there is one."""
    path = folder / "summary.json"
    return dict(read_json(path)) if path.is_file() else {"state": None}


def concluded(folder: Path, verdicts: Sequence[Verdict], cancelled: bool = False) -> dict[str, Any]:
    """summary.json of a run directory, with the state that its workers' verdicts give; `cancelled`: they were told to stop."""
    summary = {"workers": len(verdicts), **read_summary(folder)}
    summary["state"] = outcome.state(verdicts, summary["state"], cancelled)
    if "job" in recorded(folder).get("slurm", {}):
        summary["started_by"] = "playbooks/slurm.yml"
    summary.pop("failure", None)
    cause = outcome.root_cause(verdicts)
    return summary | ({"failure": outcome.failure(cause)} if cause and summary["state"] == "FAILED" else {})


def shown_result(folder: Path, summary: dict[str, Any]) -> str:
    """The end of a run for the terminal: epochs, best epoch, where the files are, next commands."""
    rows = read_history(folder / "history.csv")
    expected = summary.get("predicted_images_per_s")
    # A run of a few steps is mostly start-up, so it is not compared with a prediction.
    fair = rows and summary.get("steps", 0) >= FAIR_STEPS
    predicted = prediction.sentence(expected, rows[-1]["images_per_s"]) if expected is not None and fair else ""
    return text.result(folder.name, relative(folder), summary, rows, predicted, stragglers.of_run(folder))
