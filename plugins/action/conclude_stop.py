"""Record and show how a run was stopped."""

from typing import Any

from ansible.plugins.action import ActionBase

from plugins.shared import control
from trainer.analysis import outcome, text
from trainer.files import read_json, write_json
from trainer.telemetry import read_history


class ActionModule(ActionBase):
    """Runs once, on the control node."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """A run that nobody had to stop keeps the state it has."""
        result = super().run(tmp, task_vars)
        name, verdicts, stopped = self._task.args["run"], self._task.args["verdicts"], int(self._task.args["stopped"])
        folder = control.RUNS / name
        path = folder / "summary.json"
        summary: dict[str, Any] = read_json(path) if path.is_file() else {"state": None, "workers": len(verdicts)}
        state = outcome.state(verdicts, summary["state"], cancelled=stopped > 0)
        if stopped and state == "FAILED":
            state = "CANCELLED"
        if stopped or summary["state"] in (None, "RUNNING"):
            summary["state"] = state
            write_json(path, summary)
        headline = "" if stopped else f"{name} was not running.\n"
        result["show_last"] = headline + text.result(name, control.relative(folder), summary, read_history(folder / "history.csv"))
        return result
