"""Predict images/s at every number of workers from each host's own step and the measured network."""

from typing import Any

from plugins.shared import control, forecast
from trainer.analysis import prediction, text
from trainer.files import read_json, write_json


class ActionModule(control.ControlAction):
    """Shows the table and writes it down, for doctor.json and for the comparison after a training."""

    def act(self) -> dict[str, Any]:
        """Predict; one host needs no network."""
        plan, timed, network = self.arguments["plan"], self.arguments["timed"], self.arguments["diagnosis"]["network"]
        hosts, batch = [host["name"] for host in plan["hosts"]], forecast.local_batch(plan["counts"])
        size = prediction.bytes_per_step(plan["parameters"]["trainable"])
        compute = {name: one["step_seconds"] for name, one in timed.items()}
        found = prediction.curve(hosts, compute, batch, size, network or {})
        forecast.save(plan, found)
        self._complete(found, timed)
        return {"show": _shown(plan, size, timed, found)}

    def _complete(self, found: list[prediction.Prediction], timed: dict[str, Any]) -> None:
        file = control.PRIVATE / "doctor.json"
        write_json(file, {**read_json(file), "prediction": prediction.as_dicts(found), "steps": timed})


def _shown(plan: dict[str, Any], size: int, timed: dict[str, Any], found: list[prediction.Prediction]) -> str:
    own = [
        [name, text.Number(one["step_seconds"] * 1000, 1), text.Number(one["images_per_s"], 0), one["threads"]]
        for name, one in timed.items()
    ]
    name = f"{plan['config_name']} ({plan['config']['model']['name']})"
    head = f"{name}: {size / 1e6:,.1f} MB of gradients a step, {found[0].images_per_s:,.0f} images/s"
    alone = text.table(["host", "own step ms", "images/s", "threads"], own)
    return f"Predicted for {head} on one host\n{alone}\n\n{prediction.table(found)}"
