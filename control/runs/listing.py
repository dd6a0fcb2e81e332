"""All runs known to this machine, as a table."""

import datetime
from pathlib import Path

from control import project, text
from control.runs import launches, run_results, status
from trainer.rundir import recorded


def runs() -> str:
    """Every run that was launched or refused, the latest first, with its last known state; empty if there is none."""
    folders = {path.parent for name in ("cluster.json", "summary.json") for path in project.RUNS.glob(f"*/{name}")}
    begun = {folder: recorded(folder).get("launched_at") for folder in folders}
    when = {folder: begun[folder] or (folder / "summary.json").stat().st_mtime for folder in folders}
    latest_first = sorted(folders, key=lambda folder: (when[folder], folder.name), reverse=True)
    rows = [status.run_row(folder.name, _last_known(folder), begun[folder]) for folder in latest_first]
    return "Runs, the latest first\n" + text.table(status.RUN_COLUMNS, rows) if rows else ""


def _last_known(folder: Path) -> dict[str, object]:
    """The summary of a run. An unwatched run goes on, or ends, without reporting to this machine."""
    summary = run_results.read_summary(folder)
    if job := launches.uncollected_job(recorded(folder)):
        return summary | {"state": f"job {job} of Slurm, not collected"}
    if summary["state"] is None:
        return {"state": "not collected"}
    if summary["state"] == "RUNNING":
        seen = datetime.datetime.fromtimestamp((folder / "summary.json").stat().st_mtime)
        return summary | {"state": f"RUNNING at {seen:%H:%M}, {seen:%Y-%m-%d}"}
    return summary
