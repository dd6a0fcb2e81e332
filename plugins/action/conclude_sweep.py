"""What a sweep's measurements say: analysis.md, pictures, the answer in words. Needs no host."""

from pathlib import Path
from typing import Any

from plugins.action.plan_sweep import watts
from plugins.callback.lockstep import as_typed
from plugins.shared import control
from trainer.analysis import sweep_results, sweep_text


class ActionModule(control.ControlAction):
    """Writes the sweep's results anew from timings.csv."""

    def act(self) -> dict[str, Any]:
        """Analyse, draw, tell."""
        folder = Path(self.arguments["sweep"]["folder"])
        results = sweep_results.conclude(folder, watts(self.arguments["options"]), as_typed)
        shown = sweep_text.results(results, control.relative(folder), reported=any(control.RUNS.glob("*/history.csv")))
        return {"if_interrupted": None, "changed": results.changed, "show_last": shown}
