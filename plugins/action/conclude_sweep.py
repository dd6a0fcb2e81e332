"""What a sweep's measurements say: analysis.md, pictures, the answer in words. Needs no host."""

from pathlib import Path
from typing import Any

from plugins.action.plan_sweep import watts
from plugins.shared import control
from trainer.analysis import prediction, sweep_results, sweep_text
from trainer.files import read_json


class ActionModule(control.ControlAction):
    """Writes the sweep's results anew from timings.csv."""

    def act(self) -> dict[str, Any]:
        """Analyse, draw, tell."""
        folder = Path(self.arguments["sweep"]["folder"])
        results = sweep_results.conclude(folder, bandwidth(folder), watts(self.arguments["options"]))
        return {"if_interrupted": None, "changed": results.changed, "show_last": sweep_text.results(results, control.relative(folder))}


def bandwidth(folder: Path) -> float | None:
    """Mbit/s of the slowest link between the sweep's hosts, when the doctor has measured just those; else None."""
    file = control.PRIVATE / "doctor.json"
    if not file.is_file():
        return None
    network = read_json(file).get("network") or {}
    names = [place.split()[0] for place in read_json(folder / "summary.json")["hosts"]]
    return prediction.slowest(names, network) if set(names) <= set(network) else None
