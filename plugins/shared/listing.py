"""All runs that this machine launched, as a table."""

import datetime
from pathlib import Path

from plugins.shared import control
from trainer.analysis import status, text
from trainer.rundir import recorded


def others(name: str) -> str:
    """Every run but one, the latest first, with what is known here of how it went; empty when there is none."""
    folders = [path.parent for path in control.RUNS.glob("*/cluster.json") if path.parent.name != name]
    launched = {folder: float(recorded(folder)["launched_at"]) for folder in folders}
    latest_first = sorted(folders, key=launched.__getitem__, reverse=True)
    rows = [status.run_row(folder.name, _last_known(folder), launched[folder]) for folder in latest_first]
    return "Other runs, the latest first\n" + text.table(status.RUN_COLUMNS, rows) if rows else ""


def _last_known(folder: Path) -> dict[str, object]:
    """The summary of a run. One that is not watched goes on, or ends, without a word to this machine."""
    summary = control.read_summary(folder)
    if summary["state"] is None:
        return {"state": "not collected"}
    if summary["state"] == "RUNNING":
        seen = datetime.datetime.fromtimestamp((folder / "summary.json").stat().st_mtime)
        return summary | {"state": f"RUNNING at {seen:%H:%M}, {seen:%Y-%m-%d}"}
    return summary
