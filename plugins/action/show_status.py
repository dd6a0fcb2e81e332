"""Show a run's status as a table, or its workers' last log lines."""

from typing import Any

from plugins.shared import control, listing
from trainer.analysis import status, text


class ActionModule(control.ControlAction):
    """Runs once, on the control node, with what was seen of every host."""

    def act(self) -> dict[str, Any]:
        """Build the text."""
        name, seen = self.arguments["run"], self.arguments["seen"]
        if self.arguments.get("logs"):
            return {"show_last": "\n\n".join(_log(look) for look in seen)}
        summary = control.read_summary(control.RUNS / name)
        shown = status.table(name, summary["state"], self.arguments["hosts"], seen, self.arguments["counts"])
        running = any(look.get("state") == "running" for look in seen)
        commands = (
            text.under_way(name)
            if running
            else text.next_commands(text.after_run(name, {"epochs": 1, "state": "FAILED", **_known(summary)}))
        )
        return {"show_last": "\n\n".join((shown, listing.runs(), commands))}


def _known(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if value is not None}


def _log(look: dict[str, Any]) -> str:
    lines = look.get("log") or [look.get("note") or "(no log)"]
    return "\n".join([f"{look['host']}: last {len(lines)} lines of worker.log", *(f"  {line}" for line in lines)])
