"""Record and show how a run was stopped."""

from typing import Any

from control import project, text
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
        launches.end_all(folder)
        summary = {"workers": len(verdicts), **run_results.read_summary(folder)}
        state = outcome.state(verdicts, summary["state"], cancelled=stopped > 0)
        cause = outcome.root_cause(verdicts) if state == "FAILED" else None
        if stopped or summary["state"] in (None, "RUNNING"):
            summary |= {"state": state} if cause is None else {"state": state, "failure": outcome.failure(cause)}
            write_json(folder / "summary.json", summary)
        shown = run_results.shown_result(folder, summary)
        if stopped and cause is not None:
            return {"failed": True, "msg": f"{text.failure(cause, [one for one in verdicts if one is not cause])}\n\n{shown}"}
        return {"show_last": shown if stopped else f"{name} was not running.\n{shown}"}
