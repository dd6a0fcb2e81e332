"""Record and show how a run was stopped."""

from typing import Any

from plugins.shared import control
from trainer.analysis import outcome
from trainer.files import write_json


class ActionModule(control.ControlAction):
    """Runs once, on the control node."""

    def act(self) -> dict[str, Any]:
        """A run that nobody had to stop keeps the state it has."""
        name, verdicts, stopped = self.arguments["run"], self.arguments["verdicts"], int(self.arguments["stopped"])
        folder = control.RUNS / name
        summary = {"workers": len(verdicts), **control.read_summary(folder)}
        state = outcome.state(verdicts, summary["state"], cancelled=stopped > 0)
        if stopped and state == "FAILED":
            state = "CANCELLED"
        if stopped or summary["state"] in (None, "RUNNING"):
            summary["state"] = state
            write_json(folder / "summary.json", summary)
        headline = "" if stopped else f"{name} was not running.\n"
        return {"show_last": headline + control.shown_result(folder, summary)}
