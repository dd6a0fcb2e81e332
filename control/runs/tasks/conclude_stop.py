"""Record and show how a run was stopped."""

from typing import Any

from control import project, text
from control.runs import launches, run_results
from control.runs.outcome import Verdict
from control.task import Task
from trainer.files import write_json


class ConcludeStop(Task):
    """Runs once, on the control node."""

    def act(self) -> dict[str, Any]:
        """A run that did not have to be stopped keeps its state."""
        name, stopped = self.arguments["run"], int(self.arguments["stopped"])
        folder = project.RUNS / name
        verdicts = run_results.judged(folder, [Verdict(**returned) for returned in self.arguments["verdicts"]])
        launches.end_all(folder)
        summary = run_results.read_summary(folder)
        if stopped or summary["state"] in (None, "RUNNING"):
            summary = run_results.concluded(folder, verdicts, cancelled=stopped > 0)
            write_json(folder / "summary.json", summary)
        shown = run_results.shown_result(folder, summary)
        if stopped and summary["state"] == "FAILED":
            return {"failed": True, "msg": f"{text.failure(verdicts)}\n\n{shown}"}
        return {"show_last": shown if stopped else f"{name} was not running.\n{shown}"}
