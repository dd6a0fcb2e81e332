"""Record and show how a run was stopped."""

from typing import Any

from control import project
from control.runs import launches, outcome, run_results
from control.runs.outcome import Verdict
from control.task import Task
from trainer.files import write_json


class ConcludeStop(Task):
    """Runs once, on the control node."""

    def act(self) -> dict[str, Any]:
        """A run that did not have to be stopped keeps its state."""
        name, stopped = self.arguments["run"], int(self.arguments["stopped"])
        verdicts = [Verdict.from_dict(returned) for returned in self.arguments["verdicts"]]
        folder = project.RUNS / name
        launches.end_all(name, "runs")
        summary = {"workers": len(verdicts), **run_results.read_summary(folder)}
        state = outcome.state(verdicts, summary["state"], cancelled=stopped > 0)
        if stopped and state == "FAILED":
            state = "CANCELLED"
        if stopped or summary["state"] in (None, "RUNNING"):
            summary["state"] = state
            write_json(folder / "summary.json", summary)
        headline = "" if stopped else f"{name} was not running.\n"
        return {"show_last": headline + run_results.shown_result(folder, summary)}
