"""Tell what a run came to: write its summary, show the result, fail with the root cause."""

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from plugins.shared import control
from trainer.analysis import outcome, text
from trainer.files import read_json, write_json
from trainer.telemetry import read_history


class ActionModule(ActionBase):
    """Runs once, on the control node, with every host's verdict."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Judge, write, show."""
        result = super().run(tmp, task_vars)
        name, verdicts = self._task.args["run"], self._task.args["verdicts"]
        folder = control.RUNS / name
        if all(verdict["state"] == "unreachable" for verdict in verdicts):
            message = (
                f"{name}: no host can be reached from here: {verdicts[0]['message']}. Training may well go on.\n\n{text.under_way(name)}"
            )
            result.update(failed=True, msg=message)
            return result
        summary = _summary(folder, verdicts)
        if summary["state"] == "RUNNING":
            result["show_last"] = f"{name} is under way\n{text.under_way(name)}"
            return result
        write_json(folder / "summary.json", summary)
        result["run_under_way"] = None
        shown = text.result(name, control.relative(folder), summary, read_history(folder / "history.csv"))
        cause = outcome.root_cause(verdicts)
        if cause is not None:
            others = [verdict for verdict in verdicts if verdict is not cause]
            result.update(failed=True, msg=f"{text.failure(cause, others)}\n\n{shown}")
        else:
            result["show_last"] = shown
            if summary["state"] != "SUCCEEDED":
                result.update(failed=True, msg=f"{name} was stopped before its end: {summary['state']}\n\n{result.pop('show_last')}")
        return result


def _summary(folder: Path, verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    path = folder / "summary.json"
    chief: dict[str, Any] = read_json(path) if path.is_file() else {"state": None, "workers": len(verdicts)}
    state = outcome.state(verdicts, chief["state"], cancelled=False)
    summary = {**chief, "state": state}
    if state == "FAILED":
        cause = outcome.root_cause(verdicts)
        assert cause is not None
        summary["failure"] = {key: cause.get(key) for key in ("host", "rank", "state", "exit_code", "message")}
    else:
        summary.pop("failure", None)
    return summary
